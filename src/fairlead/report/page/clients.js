/* Every client: its metrics at the last evaluation, from the worst client to the best, as a histogram and one by one. */

const BINS = 20;
const WORST = 200;

/** client_accuracy → accuracy; personal_accuracy → accuracy, personalised. */
const measureLabel = (key) => {
  const name = key.replace(/^(client|personal)_/, "").replaceAll("_", " ");
  return key.startsWith("personal_") ? `${name}, personalised` : name;
};

function updateClients(data) {
  const usable = data.clients.filter((one) => one.metrics?.some((metric) => metric.values?.some(isNumber)));
  byId("clients").hidden = !usable.length;
  if (!usable.length) return;
  const keys = [...new Set(usable.flatMap((one) => one.metrics.map((metric) => metric.key)))];
  const like = `client_${data.first?.metric}`;
  const key = [wish.measure, like, keys[0]].find((one) => keys.includes(one));
  offer(byId("measure"), keys.map((one) => [one, measureLabel(one)]), key);
  const entries = usable.map((one, number) => clientEntry(data, one, key, number)).filter((entry) => entry?.values.length);
  const chart = byId("clients-chart");
  const room = roomIn(chart);
  const width = room >= 620 ? Math.floor((room - 24) / 2) : room;
  chart.replaceChildren(...(entries.length ? [sortedPicture(entries, key, width), histogramPicture(entries, key, width)] : []));
  if (changed(byId("clients-legend"), entries.map((one) => [one.place, one.label]))) {
    byId("clients-legend").replaceChildren(...entries.map((one) => tag("span", {}, swatch(one.place), tag("span", {}, one.label))));
  }
  byId("clients-words").textContent = clientWords(entries, key);
  clientTable(entries, key);
}

/** A group's clients with a value, from the worst to the best. */
function clientEntry(data, one, key, number) {
  const metric = one.metrics.find((other) => other.key === key);
  if (!metric) return null;
  const values = metric.values.map((value, client) => ({ client, value, samples: one.samples?.[client] })).filter(({ value }) => isNumber(value));
  values.sort((a, b) => (metric.larger ? a.value - b.value : b.value - a.value) || a.client - b.client);
  return { label: one.label, place: placeOf(data, one, number), larger: metric.larger, seeds: one.seeds ?? 1, count: one.count ?? metric.values.length, values };
}

function clientWords(entries, key) {
  const tell = ({ label, values }) => {
    const worst = values.slice(0, Math.ceil(values.length / 10)).map((one) => one.value);
    const all = values.map((one) => one.value);
    return `${label}: ${short(mean(all))} ± ${short(std(all), 2)}, worst tenth ${short(mean(worst))}`;
  };
  const [most, shown] = [Math.max(0, ...entries.map((one) => one.count)), Math.max(0, ...entries.map((one) => one.values.length))];
  const part = shown < most ? ` ${shown.toLocaleString("en")} of ${most.toLocaleString("en")} clients have test data or are shown.` : "";
  const seeds = entries.some((one) => one.seeds > 1) ? ", each a mean over seeds" : "";
  const name = measureLabel(key) + (key.startsWith("personal_") ? "," : "");
  return `${name} of every client on its own test data${seeds}; mean ± standard deviation over clients. ${entries.map(tell).join("; ")}.${part}`
    .replace(/^./, (letter) => letter.toUpperCase());
}

function clientFrame(width, low, high, across, names, sentence) {
  const height = 260;
  const plot = { top: 30, right: width - 14, bottom: height - 44 };
  const up = scale(...roomy(low, high, false, 0.06), plot.bottom, plot.top, false);
  plot.left = labelRoom(up, plot.bottom - plot.top);
  const flat = scale(...across, plot.left, plot.right, false);
  const svg = picture(width, height, sentence);
  svg.append(axes(plot, flat, up, names));
  return { svg, plot, up, across: flat };
}

/** One line a group: its clients' values, sorted. */
function sortedPicture(entries, key, width) {
  const { low, high } = extent(entries.map((one) => one.values.map(({ value }) => value)), false);
  const sentence = `${measureLabel(key)} by client, from the worst to the best.`;
  const frame = clientFrame(width, low, high, [0, 100], { x: "% of clients, from the worst", y: measureLabel(key) }, sentence);
  const at = (one, row) => (one.values.length > 1 ? (100 * row) / (one.values.length - 1) : 50);
  for (const one of entries) {
    const group = draw("g", { class: colour(one.place) });
    const points = one.values.map(({ value }, row) => ({ left: frame.across.at(at(one, row)), top: frame.up.at(value) }));
    group.append(draw("path", { d: lineThrough([points]), class: "line mean", "stroke-dasharray": dashes(one.place) }));
    if (points.length <= 60) for (const { left, top } of points) group.append(draw("circle", { cx: left, cy: top, r: 2.6, class: "spot" }));
    frame.svg.append(group);
  }
  noteCells(frame.svg, (x) => {
    const share = Math.max(0, Math.min(1, frame.across.back(x) / 100));
    const rows = entries.map((one) => {
      const { client, value, samples } = one.values[Math.round(share * (one.values.length - 1))];
      return `${one.label}: client ${client}, ${short(value)}${isNumber(samples) ? ` on ${count(samples, "sample")}` : ""}`;
    });
    return [`${Math.round(100 * share)} % of the clients are worse`, ...rows];
  });
  return frame.svg;
}

/** How many clients have which value, one outline a group. */
function histogramPicture(entries, key, width) {
  const all = extent(entries.map((one) => one.values.map(({ value }) => value)), false);
  const share = all.low >= 0 && all.high <= 1 && entries[0].larger;
  const [low, high] = share ? [0, 1] : all.low < all.high ? [all.low, all.high] : [all.low - 0.5, all.high + 0.5];
  const bin = (value) => Math.min(BINS - 1, Math.max(0, Math.floor(((value - low) / (high - low)) * BINS)));
  const counts = entries.map((one) => {
    const found = new Array(BINS).fill(0);
    for (const { value } of one.values) found[bin(value)]++;
    return found;
  });
  const most = Math.max(1, ...counts.flat());
  const sentence = `How many clients have which ${measureLabel(key)}.`;
  const frame = clientFrame(width, 0, most, [low, high], { x: measureLabel(key), y: "clients" }, sentence);
  const edge = (row) => frame.across.at(low + ((high - low) * row) / BINS);
  entries.forEach((one, number) => {
    const steps = counts[number].flatMap((of, row) => [[edge(row), frame.up.at(of)], [edge(row + 1), frame.up.at(of)]]);
    const base = frame.up.at(0);
    const d = `M${edge(0)} ${base}L${steps.map(([x, y]) => `${x} ${y}`).join("L")}L${edge(BINS)} ${base}`;
    frame.svg.append(draw("g", { class: colour(one.place) },
      draw("path", { d: `${d}Z`, class: "band" }), draw("path", { d, class: "line seed", "stroke-dasharray": dashes(one.place) })));
  });
  noteCells(frame.svg, (x) => {
    const row = bin(frame.across.back(x));
    const ends = [row, row + 1].map((end) => short(low + ((high - low) * end) / BINS));
    return [`${measureLabel(key)} ${ends[0]} to ${ends[1]}`, ...entries.map((one, number) => `${one.label}: ${count(counts[number][row], "client")}`)];
  });
  return frame.svg;
}

/** A row a client, the worst of the first group first. */
function clientTable(entries, key) {
  const body = byId("clients-body");
  if (!entries.length) return void body.replaceChildren();
  const found = entries.map((one) => new Map(one.values.map((each) => [each.client, each.value])));
  const rows = entries[0].values.slice(0, WORST);
  const told = rows.map(({ client, samples }) => [client, samples ?? "–", ...found.map((of) => short(of.get(client)))]);
  if (!changed(body, [key, told, entries.map((one) => one.label)])) return;
  const heads = ["client", "test samples", ...entries.map((one) => one.label)].map((name) => tag("th", { scope: "col" }, name));
  const lines = told.map(([client, ...cells]) => tag("tr", {}, tag("th", { scope: "row" }, `client ${client}`), cells.map((cell) => tag("td", {}, String(cell)))));
  const table = tag("table", { class: "clients" }, tag("thead", {}, tag("tr", {}, heads)), tag("tbody", {}, lines));
  const whose = entries.length > 1 ? ` of ${entries[0].label}` : "";
  const which = entries[0].values.length > rows.length ? `the ${rows.length} worst clients${whose}` : `${count(rows.length, "client")} one by one, the worst${whose} first`;
  body.replaceChildren(folded("clients", which, scrollable("Clients", table)));
}

function startClients() {
  byId("measure").addEventListener("change", () => {
    wish.measure = byId("measure").value;
    refresh(updateClients);
  });
  const entries = () => current.clients.map((one, number) => ({ place: placeOf(current, one, number), label: one.label }));
  saveButtons("clients-save", "clients", () => [[...byId("clients-chart").querySelectorAll("svg")], entries()]);
}
