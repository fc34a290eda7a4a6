/* What was measured: how different clients are over rounds, clients by pair, a bound beside the error, prediction sets. */

/** Pieces of a line, broken where a value is missing. */
function piecesOf(x, y, across, up) {
  const pieces = [[]];
  y.forEach((value, row) => {
    const there = isNumber(value) && isNumber(x[row]) && (!up.log || value > 0);
    if (there) pieces[pieces.length - 1].push({ left: across.at(x[row]), top: up.at(value) });
    else if (pieces[pieces.length - 1].length) pieces.push([]);
  });
  return pieces.filter((piece) => piece.length);
}

/** A chart of a few lines { label, place, x, y }; an upright log scale once values are far apart. */
function linesPicture(lines, width, names, sentence, height = Math.max(240, Math.min(320, Math.round(width * 0.42)))) {
  const plot = { top: 30, right: width - 14, bottom: height - 44 };
  const all = extent(lines.map((one) => one.y), false);
  const positive = extent(lines.map((one) => one.y), true);
  const far = all.low >= 0 && positive.low > 0 && positive.high / positive.low > 30;
  const up = scale(...roomy(far ? positive.low : all.low, all.high, far, 0.06), plot.bottom, plot.top, far);
  plot.left = labelRoom(up, plot.bottom - plot.top);
  const ends = extent(lines.map((one) => one.x), false);
  const across = scale(...roomy(ends.low, ends.high, false, ends.high > ends.low ? 0 : 0.5), plot.left, plot.right, false);
  const svg = picture(width, height, sentence);
  svg.append(axes(plot, across, up, names));
  for (const one of lines) {
    const pieces = piecesOf(one.x, one.y, across, up);
    const group = draw("g", { class: colour(one.place) });
    if (pieces.length) group.append(draw("path", { d: lineThrough(pieces), class: "line mean", "stroke-dasharray": dashes(one.place) }));
    const few = pieces.flat().length <= 40;
    for (const { left, top } of few ? pieces.flat() : []) group.append(draw("circle", { cx: left, cy: top, r: 2.4, class: "spot" }));
    svg.append(group);
  }
  return { svg, across, up, plot };
}

/** The row whose x is nearest. */
const nearestRow = (x, at) => x.reduce((best, value, row) => (Math.abs(value - at) < Math.abs(x[best] - at) ? row : best), 0);

const legends = {};

function showLegend(id, entries) {
  legends[id] = entries;
  if (!changed(byId(id), entries.map((one) => [one.place, one.label]))) return;
  byId(id).replaceChildren(...entries.map((one) => tag("span", {}, swatch(one.place), tag("span", {}, one.label))));
}

/* Heterogeneity over rounds. */

function updateHetero(data) {
  const usable = data.heterogeneity.filter((one) => one.rounds?.length && one.lines?.some((each) => each.values?.some(isNumber)));
  byId("hetero").hidden = !usable.length;
  if (!usable.length) return;
  const one = pickOne("hetero", usable);
  const lines = one.lines.filter((each) => each.values?.some(isNumber))
    .map((each, row) => ({ label: String(each.label), place: row + 1, x: one.rounds, y: each.values }));
  const chart = byId("hetero-chart");
  const { svg, across } = linesPicture(lines, roomIn(chart), { x: "rounds", y: "length of gradients" }, `${lines.map((each) => each.label).join(", ")} of ${one.label} over rounds.`);
  noteCells(svg, (x) => {
    const row = nearestRow(one.rounds, across.back(x));
    return [`round ${one.rounds[row]}`, ...lines.map((each) => `${each.label}: ${short(each.y[row])}`)];
  });
  chart.replaceChildren(svg);
  showLegend("hetero-legend", lines);
  const seeds = one.seeds > 1 ? ` Means over ${one.seeds} seeds.` : "";
  const pair = isNumber(one.G) && isNumber(one.B) ? ` At these points A ≤ G² + B²·b with G = ${short(one.G, 3)} and B = ${short(one.B, 3)}.` : "";
  byId("hetero-words").textContent = "Where √(A − b), ζ_max and ζ_pair stay up while ‖∇f‖ falls, clients pull apart around a common optimum, which is what "
    + `makes FedAvg stall; ζ̂ is not centred, so it falls with ‖∇f‖ and meets √(A − b) at the optimum, where both are ζ_*.${pair}${seeds}`;
}

/** Which of several seeds is shown. */
const seedWords = (one) => (one.seeds > 1 ? ` Shown for seed ${one.seed}.` : "");

/* Clients by pair. */

/** A layer's table; the mean of all layers first. */
function pairTables(one) {
  const mean = one.clients.map((_, row) => one.clients.map((_, column) => {
    const found = one.values.map((table) => table[row]?.[column]).filter(isNumber);
    return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
  }));
  const layers = one.layers.map((name, row) => [String(name), one.values[row]]);
  return layers.length > 1 ? [["mean of all layers", mean], ...layers] : layers;
}

function updatePairs(data) {
  const usable = data.pairs.filter((one) => one.clients?.length > 1 && one.layers?.length && one.values?.length === one.layers.length);
  byId("pairs").hidden = !usable.length;
  if (!usable.length) return;
  const one = pickOne("pairs", usable);
  const tables = pairTables(one);
  const at = /^\d+$/.test(wish.layer ?? "") && Number(wish.layer) < tables.length ? Number(wish.layer) : 0;
  offer(byId("layer"), tables.map(([name], row) => [row, name]), at);
  fieldShown(byId("layer"), tables.length > 1);
  const chart = byId("pairs-chart");
  chart.replaceChildren(pairPicture(one, tables[at], roomIn(chart)));
  const shown = one.more ? ` Shown: ${one.more}.` : "";
  byId("pairs-words").textContent = `CKA of every two clients' models after their local steps, at ${one.where}: 1 where the features of held-out inputs are the same up to `
    + `rotation and scale, so a client whose row stands out has learned something else than the others.${shown}${seedWords(one)}`;
}

function pairPicture(one, [name, table], width) {
  const ids = one.clients;
  const cell = Math.max(7, Math.min(34, Math.floor((Math.min(width, 620) - 60) / ids.length)));
  const plot = { left: 44, top: 52 };
  plot.right = plot.left + cell * ids.length;
  plot.bottom = plot.top + cell * ids.length;
  const apart = table.flatMap((row, place) => row.filter((value, column) => isNumber(value) && column !== place));
  const low = Math.min(...apart, 1);
  const share = scale(low < 1 ? low : 0, 1, 0, 1, false);
  const wide = Math.max(plot.right + 12, 240);
  const svg = picture(Math.min(width, wide), plot.bottom + 40, `CKA of every two of ${ids.length} clients, ${name}: from ${short(low)} to 1.`);
  const stops = LOW_TO_HIGH[theme()];
  const cells = draw("g", {});
  table.forEach((row, place) => row.forEach((value, column) => {
    if (!isNumber(value)) return;
    const fill = `rgb(${heat(share.at(value), stops).join(" ")})`;
    cells.append(draw("rect", { x: plot.left + cell * column, y: plot.top + cell * place, width: cell - 1, height: cell - 1, fill, class: "pair-cell" }));
  }));
  svg.append(cells, pairAxes(ids, plot, cell), colourBar(share, { ...plot, right: Math.max(plot.right, 228) }, "CKA", "pair-shades"));
  noteCells(svg, (x, y) => {
    const [row, column] = [Math.floor((y - plot.top) / cell), Math.floor((x - plot.left) / cell)];
    if (row < 0 || column < 0 || row >= ids.length || column >= ids.length) return null;
    return [`clients ${ids[row]} and ${ids[column]}`, `${name}: ${short(table[row]?.[column])}`];
  });
  return svg;
}

function pairAxes(ids, plot, cell) {
  const group = draw("g", { class: "axes" });
  const stride = Math.ceil(15 / cell);
  const apart = Math.ceil(24 / cell);
  ids.forEach((id, row) => {
    if (row % stride === 0) group.append(text(plot.left - 6, plot.top + cell * (row + 0.5) + 4, id, { "text-anchor": "end" }));
    if (row % apart === 0) group.append(text(plot.left + cell * (row + 0.5), plot.bottom + 16, id, { "text-anchor": "middle" }));
  });
  group.append(text(plot.right, plot.bottom + 33, "client", { "text-anchor": "end", class: "name" }));
  return group;
}

/* A bound, and what it bounds. */

function updateBound(data) {
  const usable = data.bounds.filter((one) => one.rounds?.length && one.bound?.some(isNumber) && one.error?.some(isNumber));
  byId("bound").hidden = !usable.length;
  if (!usable.length) return;
  const one = pickOne("bound", usable);
  const place = placeOf(data, one, 0) % 8;
  const lines = [
    { label: `bound on ${one.of}`, place: 8, y: one.bound },
    { label: "the mean over rounds that it bounds", place, y: one.mean ?? [] },
    { label: "the error of each round", place: place + 16, y: one.error },
  ].map((line) => ({ ...line, x: one.rounds }));
  const chart = byId("bound-chart");
  const { svg, across } = linesPicture(lines, roomIn(chart), { x: "rounds", y: "f − f*" }, `${one.theorem} for ${one.label}, and the error that was measured.`);
  noteCells(svg, (x) => {
    const row = nearestRow(one.rounds, across.back(x));
    return [`round ${one.rounds[row]}`, ...lines.map((line) => `${line.label}: ${short(line.y[row])}`)];
  });
  chart.replaceChildren(svg);
  showLegend("bound-legend", lines);
  byId("bound-words").textContent = boundWords(one);
}

function boundWords(one) {
  const broken = (one.broken ?? []).map(String);
  const ratios = one.bound.map((bound, row) => bound / (one.mean?.[row] ?? NaN)).filter(isNumber);
  const close = ratios.length ? `, which is at least ${short(Math.min(...ratios), 3)} times as large` : "";
  const reading = broken.length
    ? `${one.theorem}, of which this run breaks a condition, so that it promises nothing here: ${broken.join("; ")}.`
    : `${one.theorem}: its conditions hold, so the mean over rounds stays below the bound${close}.`;
  const notes = (one.notes ?? []).map((note) => ` ${String(note).replace(/^./, (letter) => letter.toUpperCase())}.`);
  return reading + notes.join("") + seedWords(one);
}

/* Prediction sets. */

const SET_NAMES = { threshold: "threshold on the probability", aps: "APS", raps: "RAPS" };

function updateSets(data) {
  const usable = data.coverage.filter((one) => one.kappas?.length && one.coverage?.some(isNumber) && one.size?.some(isNumber));
  byId("sets").hidden = !usable.length;
  if (!usable.length) return;
  const kinds = [...new Set(usable.map((one) => String(one.kind)))];
  const kind = kinds.includes(wish.sets) ? wish.sets : kinds[0];
  offer(byId("sets-kind"), kinds.map((one) => [one, SET_NAMES[one] ?? one]), kind);
  fieldShown(byId("sets-kind"), kinds.length > 1);
  const entries = usable.filter((one) => String(one.kind) === kind).map((one, number) => ({ ...one, place: placeOf(data, one, number) }));
  const kappas = entries[0].kappas.filter(isNumber);
  const kappa = [Number(wish.kappa), 0.1, kappas[0]].find((value) => kappas.includes(value));
  offer(byId("kappa"), kappas.map((value) => [value, String(value)]), kappa);
  fieldShown(byId("kappa"), kappas.length > 1);
  const chart = byId("sets-chart");
  const room = roomIn(chart);
  const width = room >= 620 ? Math.floor((room - 24) / 2) : room;
  const clients = entries.map((one) => coverageOfClients(one, kappa)).filter((one) => one.values.length);
  chart.replaceChildren(sizePicture(entries, width), ...(clients.length ? [clientCoverage(clients, kappa, width)] : []));
  showLegend("sets-legend", entries);
  byId("sets-words").textContent = setWords(entries, clients, kappa);
}

/** Coverage against the mean size of a set; a ring at one label is the top-1 accuracy. */
function sizePicture(entries, width) {
  const lines = entries.map((one) => ({ label: one.label, place: one.place, x: one.size, y: one.coverage }));
  const rings = entries.map((one) => ({ label: "", place: one.place, x: [1], y: [one.accuracy] }));
  const { svg, across, up } = linesPicture([...lines, ...rings], width, { x: "mean size of a set", y: "coverage" }, "Coverage against the mean size of prediction sets.", 260);
  for (const one of entries) {
    if (isNumber(one.accuracy)) svg.append(draw("g", { class: colour(one.place) }, draw("circle", { cx: across.at(1), cy: up.at(one.accuracy), r: 6, class: "ring" })));
  }
  noteCells(svg, (x) => {
    const at = across.back(x);
    const tell = (one) => {
      const row = nearestRow(one.size, at);
      return `${one.label}: κ ${one.kappas[row]}, coverage ${short(one.coverage[row])} with ${short(one.size[row])} labels`;
    };
    return [`sets of about ${short(at, 3)} labels`, ...entries.map(tell)];
  });
  return svg;
}

function coverageOfClients(one, kappa) {
  const found = one.by_client?.[one.kappas.indexOf(kappa)] ?? [];
  const values = found.map((value, client) => ({ client, value })).filter(({ value }) => isNumber(value)).sort((a, b) => a.value - b.value);
  return { ...one, values };
}

/** The coverage of every client, sorted, beside the level that holds for all of them together. */
function clientCoverage(entries, kappa, width) {
  const { low, high } = extent([...entries.map((one) => one.values.map(({ value }) => value)), [1 - kappa]], false);
  const frame = clientFrame(width, low, Math.min(1, high), [0, 100], { x: "% of clients, from the lowest", y: "coverage of a client" }, `Coverage of every client for κ = ${kappa}.`);
  const level = frame.up.at(1 - kappa);
  frame.svg.append(line(frame.plot.left, level, frame.plot.right, level, { class: "goal" }));
  const at = (one, row) => frame.across.at(one.values.length > 1 ? (100 * row) / (one.values.length - 1) : 50);
  for (const one of entries) {
    const points = one.values.map(({ value }, row) => ({ left: at(one, row), top: frame.up.at(value) }));
    const group = draw("g", { class: colour(one.place) }, draw("path", { d: lineThrough([points]), class: "line mean", "stroke-dasharray": dashes(one.place) }));
    for (const { left, top } of points.length <= 60 ? points : []) group.append(draw("circle", { cx: left, cy: top, r: 2.6, class: "spot" }));
    frame.svg.append(group);
  }
  noteCells(frame.svg, (x) => {
    const share = Math.max(0, Math.min(1, frame.across.back(x) / 100));
    const tell = (one) => {
      const { client, value } = one.values[Math.round(share * (one.values.length - 1))];
      return `${one.label}: client ${client}, ${short(value)}`;
    };
    return [`${Math.round(100 * share)} % of the clients have less`, ...entries.map(tell)];
  });
  return frame.svg;
}

function setWords(entries, clients, kappa) {
  const reading = "A curve further up and to the left covers the true label with smaller sets (a ring is the top-1 accuracy, with one label each); "
    + `the dotted line, 1 − κ = ${short(1 - kappa)}, is promised for all clients together, not for each of them.`;
  const tell = (one) => `${one.label}: coverage ${short(one.coverage[one.kappas.indexOf(kappa)])} with ${short(one.size[one.kappas.indexOf(kappa)], 3)} labels`;
  const spread = (one) => (one.values?.length ? `, clients from ${short(one.values[0].value, 3)} to ${short(one.values[one.values.length - 1].value, 3)}` : "");
  const told = (clients.length ? clients : entries).map((one) => tell(one) + spread(one)).join("; ");
  const more = [...new Set(entries.flatMap((one) => [...(one.notes ?? []), one.more ? `shown: ${one.more}` : null]).filter(Boolean))];
  const notes = more.map((note) => ` ${String(note).replace(/^./, (letter) => letter.toUpperCase())}.`);
  return `${reading} For κ = ${kappa}, ${told}.${notes.join("")}${seedWords(entries[0])}`;
}

function startMeasures() {
  const choose = (select, word, update) => byId(select).addEventListener("change", () => {
    wish[word] = byId(select).value;
    refresh(update);
  });
  choose("hetero-pick", "hetero", updateHetero);
  choose("pairs-pick", "pairs", updatePairs);
  choose("layer", "layer", updatePairs);
  choose("bound-pick", "bound", updateBound);
  choose("sets-kind", "sets", updateSets);
  choose("kappa", "kappa", updateSets);
  for (const [word, name] of [["hetero", "heterogeneity"], ["pairs", "pairs of clients"], ["bound", "bound"], ["sets", "prediction sets"]]) {
    saveButtons(`${word}-save`, name, () => [[...byId(`${word}-chart`).querySelectorAll("svg")], legends[`${word}-legend`] ?? []]);
  }
}
