/* Two charts of many cells: which client holds which class, and drift by layer and round. */

/** Choose the entry of a list that a select and the address agree on. */
function pickOne(word, list) {
  const place = /^\d+$/.test(wish[word] ?? "") ? Number(wish[word]) : 0;
  const at = place < list.length ? place : 0;
  const select = byId(`${word}-pick`);
  offer(select, list.map((one, number) => [number, one.label ?? `${number + 1}`]), at);
  fieldShown(select, list.length > 1);
  return list[at];
}

/** Show or hide a select with its name; a row in which all are hidden takes no room. */
function fieldShown(select, shown) {
  select.closest(".field").hidden = !shown;
  const row = select.closest(".switches");
  row.hidden = [...row.children].every((field) => field.hidden);
}

/** Show a note for the cell under the pointer; `find` turns a place of the chart into its words. */
function noteCells(svg, find) {
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / box.width;
    const words = find((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
    if (words) showNote(words.map((each, row) => tag(row ? "div" : "b", {}, each)), event.clientX, event.clientY, svg);
    else hideNote();
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideNote());
}

/* Who holds what. */

function updateSplit(data) {
  const usable = data.splits.filter((split) => split.counts?.length && split.counts[0]?.length);
  byId("split").hidden = !usable.length;
  if (!usable.length) return;
  const split = pickOne("split", usable);
  const chart = byId("split-chart");
  chart.replaceChildren(splitPicture(split, roomIn(chart)));
  const words = [split.label ? `${split.label}: ` : "", split.sentence ?? "", split.more ? ` ${shownWords(split.more)}` : ""];
  byId("split-words").textContent = words.join("");
}

/** What of a split is shown, as one sentence whether or not it came as one. */
const shownWords = (more) => `Shown: ${more.replace(/^Shown:?\s+/i, "").replace(/\.\s+Shown:?\s+/gi, ", and ").replace(/\.$/, "")}.`;

/** Clients side by side on a wide page, below each other on a narrow one. */
function splitPicture(split, width) {
  const counts = split.counts;
  const classes = counts[0].map((_, place) => String(split.classes?.[place] ?? place));
  const sizes = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const wide = width >= 560;
  const names = Math.min(90, 14 + 7 * Math.max(...classes.map((name) => name.length), 2));
  const strip = wide ? 46 : 64;
  const left = wide ? Math.max(names, 46) : 40;
  const top = wide ? 24 + strip : 34;
  const room = width - left - (wide ? 10 : strip + 14);
  const across = wide ? counts.length : classes.length;
  const cell = Math.max(3, Math.min(wide ? 42 : 26, room / across));
  const down = wide ? classes.length : counts.length;
  const tall = Math.max(5, Math.min(cell, 22, wide ? Math.max(9, 600 / down) : 22));
  const height = top + tall * down + (wide ? 42 : 12);
  const svg = picture(width, height, `${split.sentence ?? "Samples by client and class"}`);
  const at = (client, label) => (wide ? [left + cell * client, top + tall * label] : [left + cell * label, top + tall * client]);
  const place = { left, top, cell, tall, strip, wide, right: left + cell * across, bottom: top + tall * down };
  svg.append(...splitAxes(place, classes, counts.length), splitCells(place, counts, at), splitSizes(place, sizes));
  noteCells(svg, (x, y) => {
    const [column, row] = [Math.floor((x - left) / cell), Math.floor((y - top) / tall)];
    const [client, label] = wide ? [column, row] : [row, column];
    if (client < 0 || client >= counts.length || (label >= classes.length) || (wide ? x > place.right : y < top)) return null;
    const size = sizes[client];
    const total = `${size.toLocaleString("en")} samples`;
    if (label < 0) return [`client ${client}`, total];
    const count = counts[client][label];
    return [`client ${client}, class ${classes[label]}`, `${count.toLocaleString("en")} of ${total} (${size ? Math.round((100 * count) / size) : 0} %)`];
  });
  return svg;
}

/** Discs whose area is the count; squares where there is no room for discs. */
function splitCells(place, counts, at) {
  const most = Math.max(1, ...counts.flat());
  const group = draw("g", { class: "cells" });
  const room = Math.min(place.cell, place.tall);
  counts.forEach((row, client) => row.forEach((count, label) => {
    const [x, y] = at(client, label);
    if (!(count > 0)) return;
    const share = Math.sqrt(count / most);
    const disc = { cx: x + place.cell / 2, cy: y + place.tall / 2, r: Math.max(0.9, share * room * 0.48) };
    const square = { x, y, width: place.cell * 0.92, height: place.tall * 0.92, "fill-opacity": 0.12 + 0.88 * share };
    group.append(room >= 9 ? draw("circle", disc) : draw("rect", square));
  }));
  return group;
}

function splitSizes(place, sizes) {
  const most = Math.max(1, ...sizes);
  const group = draw("g", { class: "sizes" });
  sizes.forEach((size, client) => {
    const long = ((place.strip - 16) * size) / most;
    const standing = { x: place.left + place.cell * (client + 0.12), y: place.top - 8 - long, width: place.cell * 0.76, height: long };
    const lying = { x: place.right + 8, y: place.top + place.tall * (client + 0.12), width: long, height: place.tall * 0.76 };
    group.append(draw("rect", place.wide ? standing : lying));
  });
  return group;
}

function splitAxes(place, classes, clients) {
  const { left, top, cell, tall, wide, right, bottom } = place;
  const every = (step, size, room) => Math.max(1, Math.ceil(room / size)) * step;
  const parts = [];
  const upright = (index) => text(left - 8, top + tall * (index + 0.5) + 4, wide ? classes[index].slice(0, 11) : index, { "text-anchor": "end" });
  const level = (index) => text(left + cell * (index + 0.5), wide ? bottom + 16 : top - 8, wide ? index : classes[index].slice(0, 6), { "text-anchor": "middle" });
  const [rows, columns] = wide ? [classes.length, clients] : [clients, classes.length];
  const longest = wide ? 3 : Math.min(6, Math.max(...classes.map((name) => name.length)));
  for (let index = 0; index < rows; index += every(1, tall, 13)) parts.push(upright(index));
  for (let index = 0; index < columns; index += every(1, cell, 8 + 7 * longest)) parts.push(level(index));
  for (let row = 0; row <= rows; row++) parts.push(line(left, top + tall * row, right, top + tall * row, { class: "grid" }));
  if (wide) {
    parts.push(text(right, bottom + 34, "client", { "text-anchor": "end", class: "name" }), text(2, top - 8, "class", { class: "name" }));
    parts.push(text(left - 8, top - 26, "size", { class: "name", "text-anchor": "end" }));
  } else {
    for (const [x, name] of [[2, "client"], [left + 8, "class"], [right + 8, "size"]]) parts.push(text(x, 12, name, { class: "name" }));
  }
  return parts;
}

/* Drift. */

const LOW_TO_HIGH = {
  light: ["#f4f2e8", "#cfe0c6", "#8dc3b5", "#4697a8", "#2f6793", "#2a3570"],
  dark: ["#1c2330", "#233f5e", "#25688a", "#3d98a3", "#93c9a6", "#f7eeb0"],
};

/** The colour at a share from 0 to 1 of the way from low to high, as [red, green, blue]. */
function heat(share, stops) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const at = Math.min(stops.length - 2, Math.floor(place));
  const part = (stop, byte) => parseInt(stop.slice(1 + 2 * byte, 3 + 2 * byte), 16);
  return [0, 1, 2].map((byte) => Math.round(part(stops[at], byte) + (place - at) * (part(stops[at + 1], byte) - part(stops[at], byte))));
}

function updateDrift(data) {
  const usable = data.drift.filter((one) => one.rounds?.length && one.layers?.length && one.values?.some((row) => row?.some(isNumber)));
  byId("drift").hidden = !usable.length;
  if (!usable.length) return;
  const one = pickOne("drift", usable);
  const chart = byId("drift-chart");
  const range = driftRange(one);
  chart.replaceChildren(driftPicture(one, range, roomIn(chart)));
  const of = one.label ? ` of ${one.label.replace(", CKA", "")}` : "";
  const scaled = range.log ? "; the colours are on a log scale" : "";
  byId("drift-words").textContent = one.measure === "cka"
    ? `Similarity of the clients' models${of} by layer and round, after their local steps on held-out inputs: 1 where their features are the same up to rotation and scale, lower where they disagree${scaled}.`
    : `Drift diversity${of} by layer and round: 1/S where the round's S clients move in the same direction, 1 where they move at right angles, `
      + `larger where they pull apart${scaled}.`;
}

/** The ends of the colours; a log scale once they are far apart. */
function driftRange(one) {
  const { low, high } = extent(one.values, false);
  const floor = low >= 1 ? 1 : low;
  return { low: floor, high: high > floor ? high : floor + 1, log: floor > 0 && high / floor > 30 };
}

function driftPicture(one, range, width) {
  const layers = one.layers.map(String);
  const names = Math.min(Math.round(width * 0.3), 16 + 6.6 * Math.max(...layers.map((name) => name.length)));
  const tall = Math.max(6, Math.min(26, 420 / layers.length));
  const plot = { left: Math.max(40, names), top: 52, right: width - 12 };
  plot.bottom = plot.top + tall * layers.length;
  const extents = `${layers.length} layers over ${one.rounds.length} rounds, from ${short(range.low)} to ${short(range.high)}`;
  const svg = picture(width, plot.bottom + 44, `${one.measure === "cka" ? "Similarity" : "Drift diversity"} of ${one.label ?? "a run"} for ${extents}.`);
  const share = scale(range.low, range.high, 0, 1, range.log);
  const columns = Math.max(1, Math.min(one.rounds.length, Math.floor(plot.right - plot.left)));
  svg.append(heatImage(one, share, columns, plot), driftAxes(one, layers, plot, tall), colourBar(share, plot, one.measure === "cka" ? "CKA" : "diversity"));
  noteCells(svg, (x, y) => {
    const row = Math.floor((y - plot.top) / tall);
    const round = Math.floor(((x - plot.left) / (plot.right - plot.left)) * one.rounds.length);
    if (row < 0 || row >= layers.length || round < 0 || round >= one.rounds.length) return null;
    return [layers[row], `round ${one.rounds[round]}: ${short(one.values[row]?.[round])}`];
  });
  return svg;
}

/** The cells as one small image; where a pixel stands for several rounds, their largest value. */
function heatImage(one, share, columns, plot) {
  const canvas = tag("canvas", { width: columns, height: one.layers.length });
  const paint = canvas.getContext("2d");
  const image = paint.createImageData(columns, one.layers.length);
  const stops = LOW_TO_HIGH[theme()];
  for (let row = 0; row < one.layers.length; row++) {
    for (let column = 0; column < columns; column++) {
      const [from, to] = [column, column + 1].map((edge) => Math.floor((edge * one.rounds.length) / columns));
      const values = (one.values[row] ?? []).slice(from, Math.max(to, from + 1)).filter(isNumber);
      if (!values.length) continue;
      image.data.set([...heat(share.at(Math.max(...values)), stops), 255], 4 * (row * columns + column));
    }
  }
  paint.putImageData(image, 0, 0);
  return draw("image", {
    href: canvas.toDataURL(), x: plot.left, y: plot.top, width: plot.right - plot.left, height: plot.bottom - plot.top,
    preserveAspectRatio: "none", class: "heat",
  });
}

function driftAxes(one, layers, plot, tall) {
  const group = draw("g", { class: "axes" });
  const most = Math.floor((plot.left - 10) / 6.4);
  const stride = Math.ceil(13 / tall);
  layers.forEach((name, row) => {
    if (row % stride) return;
    const words = name.length > most ? `…${name.slice(1 - most)}` : name;
    group.append(text(plot.left - 8, plot.top + tall * (row + 0.5) + 4, words, { "text-anchor": "end" }));
  });
  const count = one.rounds.length;
  const room = plot.right - plot.left;
  const ends = { low: one.rounds[0], high: Math.max(one.rounds[count - 1], one.rounds[0] + 1), log: false };
  for (const { value, label } of evenTicks(ends, Math.max(3, Math.round(room / 95)))) {
    const column = one.rounds.indexOf(value);
    if (column < 0) continue;
    const x = plot.left + (room * (column + 0.5)) / count;
    group.append(text(x, plot.bottom + 18, label, { "text-anchor": "middle" }));
  }
  group.append(text(plot.right, plot.bottom + 36, "round", { "text-anchor": "end", class: "name" }));
  return group;
}

function colourBar(share, plot, name, id = "drift-shades") {
  const stops = LOW_TO_HIGH[theme()];
  const shades = stops.map((shade, place) => draw("stop", { offset: place / (stops.length - 1), "stop-color": shade }));
  const wide = Math.min(220, plot.right - plot.left - 20);
  const left = plot.right - wide;
  const bar = scale(share.low, share.high, left, plot.right, share.log);
  const group = draw("g", { class: "axes" }, draw("linearGradient", { id }, shades));
  group.append(draw("rect", { x: left, y: 8, width: wide, height: 9, rx: 2, fill: `url(#${id})`, class: "plain" }));
  for (const { value, label } of ticks(bar, 3)) group.append(text(bar.at(value), 31, label, { "text-anchor": "middle" }));
  group.append(text(left - 8, 17, name, { class: "name", "text-anchor": "end" }));
  return group;
}

function startMaps() {
  for (const word of ["split", "drift"]) {
    byId(`${word}-pick`).addEventListener("change", () => {
      wish[word] = byId(`${word}-pick`).value;
      refresh({ split: updateSplit, drift: updateDrift }[word]);
    });
    saveButtons(`${word}-save`, { split: "clients and classes", drift: "drift" }[word], () => [[...byId(`${word}-chart`).querySelectorAll("svg")], []]);
  }
}
