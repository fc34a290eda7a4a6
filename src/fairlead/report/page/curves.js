/* The chart of a metric against an axis, one line a group. */

const curves = { data: null, lines: [], view: null, drag: null, tap: 0, cache: new Map() };

/** What the switches say, with the data's proposal where nothing was chosen. */
function chosen(data) {
  const metric = data.metrics.find((one) => one.key === wish.metric) ?? data.metrics.find((one) => one.key === data.first?.metric) ?? data.metrics[0];
  const axis = data.axes.find((one) => one.key === wish.axis) ?? data.axes.find((one) => one.key === data.first?.axis) ?? data.axes[0];
  return {
    metric,
    axis,
    band: ["std", "range", "none"].includes(wish.band) ? wish.band : "std",
    smooth: ["5", "20"].includes(wish.smooth) ? Number(wish.smooth) : 0,
    logx: wish.logx === "1",
    logy: wish.logy === undefined ? !metric.larger && allPositive(data, metric.key) : wish.logy === "1",
    seeds: wish.seeds === "1",
    zoom: wish.zoom,
  };
}

/** The views of the charts beside the first one: another metric each. */
function besides(data, view) {
  const others = data.metrics.filter((one) => one.key !== view.metric.key);
  const shown = wish.beside === "*" ? others : others.filter((one) => one.key === wish.beside);
  return shown.map((metric) => ({ ...view, metric, logy: !metric.larger && allPositive(data, metric.key) }));
}

function allPositive(data, key) {
  const fine = (run) => (run.columns?.[key] ?? []).every((value) => !isNumber(value) || value > 0);
  return data.groups.every((group) => group.runs.every(fine));
}

/** The groups that are shown, each with its seeds and their mean. */
function groupLines(data, view) {
  const key = [view.metric.key, view.axis.key, view.smooth].join("\n");
  if (!curves.cache.has(key)) {
    const made = data.groups.map((group) => {
      const seeds = group.runs.map((run) => points(run, view.axis.key, view.metric.key, view.smooth));
      const filled = seeds.filter((seed) => seed.x.length);
      return { group, place: group.look, seeds: filled, blend: blend(filled) };
    });
    if (curves.cache.size > 20) curves.cache.clear();
    curves.cache.set(key, made);
  }
  return curves.cache.get(key).filter((one) => !wish.hidden.has(one.group.id) && one.seeds.length);
}

/** Show the section, with new data or after a switch. */
function updateCurves(data) {
  const any = data.metrics.length > 0 && data.axes.length > 0;
  byId("curves").hidden = !any;
  if (!any || curves.drag) return; // a zoom in the making draws anew when it ends
  if (curves.data !== data) curves.cache.clear();
  curves.data = data;
  const view = chosen(data);
  curves.view = view;
  offer(byId("metric"), data.metrics.map((one) => [one.key, one.label]), view.metric.key);
  offer(byId("axis"), data.axes.map((one) => [one.key, one.label]), view.axis.key);
  const others = data.metrics.filter((one) => one.key !== view.metric.key);
  const every = others.length > 1 ? [["*", "all others"]] : [];
  offer(byId("beside"), [["", "nothing"], ...every, ...others.map((one) => [one.key, one.label])], besides(data, view).length ? wish.beside : "");
  byId("beside").closest(".field").hidden = !others.length;
  byId("band").value = view.band;
  byId("smooth").value = String(view.smooth);
  for (const name of ["logx", "logy", "seeds"]) byId(name).checked = view[name];
  byId("band").disabled = view.seeds;
  byId("unzoom").hidden = !view.zoom;
  updateLegend(data);
  drawCurves();
}

function updateLegend(data) {
  const legend = byId("legend");
  const build = changed(legend, data.groups.map((group) => group.id));
  if (build) {
    legend.replaceChildren(...data.groups.map((group) => {
      const emphasise = (on) => () => faint(on ? group.id : null);
      return tag("button", {
        type: "button", click: () => toggle(group.id),
        pointerenter: emphasise(true), pointerleave: emphasise(false), focus: emphasise(true), blur: emphasise(false),
      }, swatch(group.look), tag("span", {}, group.label));
    }));
  }
  data.groups.forEach((group, place) => legend.children[place].setAttribute("aria-pressed", String(!wish.hidden.has(group.id))));
}

function toggle(id) {
  if (!wish.hidden.delete(id)) wish.hidden.add(id);
  refresh(updateCurves);
}

/** Let one group stand out while the pointer is on its name. */
function faint(id) {
  const known = curves.lines.some((one) => one.group.id === id);
  for (const node of byId("curves-chart").querySelectorAll("[data-group]")) {
    node.classList.toggle("faint", known && node.dataset.group !== id);
  }
}

/** The y values a line shows between two places of x. */
function shownValues(one, view, [low, high]) {
  const pick = (x, ...lists) => {
    const [from, to] = [firstAtLeast(x, low), firstAtLeast(x, high + (Math.abs(high) || 1) * 1e-12)];
    return lists.map((list) => list.subarray(from, to));
  };
  if (view.seeds) return one.seeds.flatMap((seed) => pick(seed.x, seed.y));
  const { x, mean: middle, count } = one.blend;
  const [lower, upper] = bandOf(one, view);
  const whole = (list) => list.map((value, place) => (count[place] === one.seeds.length ? value : NaN));
  return pick(x, middle, whole(lower), whole(upper));
}

function bandOf(one, view) {
  const { mean: middle, std: off, low, high } = one.blend;
  if (view.band === "none" || one.seeds.length < 2) return [middle, middle];
  if (view.band === "range") return [low, high];
  return [middle.map((value, place) => value - off[place]), middle.map((value, place) => value + off[place])];
}

/** The least and the greatest of many lists, positive ones only for a log scale. */
function extent(lists, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return { low, high };
}

/** The ends of the x axis: the zoom, or all there is. */
function acrossEnds(lines, view) {
  const all = extent(lines.flatMap((one) => one.seeds.map((seed) => seed.x)), view.logx);
  if (all.low > all.high) return null;
  const [low, high] = all.low === all.high ? roomy(all.low, all.high, view.logx, 0.5) : [all.low, all.high];
  if (!view.zoom || (view.logx && view.zoom[0] <= 0)) return [low, high];
  return view.zoom;
}

/** The ends of the y axis. What runs away before it diverges does not flatten the rest. */
function upEnds(lines, view, ends, goal) {
  const all = extent(lines.flatMap((one) => shownValues(one, view, ends)), view.logy);
  const calm = lines.flatMap((one) => one.seeds.filter((seed) => seed.run.status !== "diverged"));
  const limit = extent(calm.map((seed) => seed.y.subarray(firstAtLeast(seed.x, ends[0]), within(seed.x, ...ends)[1])), view.logy);
  let { low, high } = all;
  if (calm.length < lines.reduce((sum, one) => sum + one.seeds.length, 0) && limit.low < limit.high) {
    const [least, most] = roomy(limit.low, limit.high, view.logy, 0.3);
    [low, high] = [Math.max(low, least), Math.min(high, most)];
  }
  if (goal !== null && !(view.logy && goal <= 0)) [low, high] = [Math.min(low, goal), Math.max(high, goal)];
  return low > high ? null : roomy(low, high, view.logy, 0.04);
}

function drawCurves() {
  const { data, view } = curves;
  const chart = byId("curves-chart");
  const lines = groupLines(data, view);
  const goal = target(data);
  const level = goal && goal.metric.key === view.metric.key ? goal.value : null;
  const ends = acrossEnds(lines, view);
  const sides = ends && upEnds(lines, view, ends, level);
  curves.lines = lines;
  hideNote();
  byId("curves-words").textContent = curveWords(data, view, lines, ends);
  if (!sides) {
    const why = lines.length ? "no value can be shown on this scale" : "no group is shown";
    chart.replaceChildren(tag("p", { class: "nothing" }, `Nothing to draw: ${why}.`));
    curves.frame = null;
    return;
  }
  const [focused, at] = [chart.contains(document.activeElement), curves.at];
  const more = besides(data, view);
  const room = roomIn(chart);
  const width = more.length && room >= 620 ? Math.floor((room - 24) / 2) : room;
  const { svg, frame } = curvePicture(width, lines, view, ends, sides, level, 0);
  curves.frame = frame;
  watchPointer(svg);
  chart.replaceChildren(svg, ...more.map((other, number) => besidePicture(data, other, width, ends, goal, number + 1)).filter(Boolean));
  if (focused) svg.focus({ preventScroll: true });
  if (isNumber(at)) pointAt(curves.frame.across.at(at), curves.height);
}

/** The same groups and ends of the x axis with another metric; the pointer shows its values. */
function besidePicture(data, view, width, ends, goal, number) {
  const lines = groupLines(data, view);
  const level = goal && goal.metric.key === view.metric.key ? goal.value : null;
  const sides = upEnds(lines, view, ends, level);
  if (!lines.length || !sides) return null;
  const { svg, frame } = curvePicture(width, lines, view, ends, sides, level, number);
  noteCells(svg, (x) => {
    const at = Math.max(ends[0], Math.min(ends[1], frame.across.back(x)));
    const found = lines.map((one) => [one.group.label, valueAt(one, at).middle]).filter(([, value]) => isNumber(value));
    return found.length ? [`${view.metric.label} at ${view.axis.label} ${short(at, 4)}`, ...found.map(([label, value]) => `${label}: ${short(value)}`)] : null;
  });
  return svg;
}

function curvePicture(width, lines, view, ends, sides, level, number) {
  const height = width < 520 ? 300 : Math.min(460, Math.round(width * 0.46));
  const plot = { top: 28, right: width - 12, bottom: height - 44 };
  const up = scale(...sides, plot.bottom, plot.top, view.logy);
  plot.left = labelRoom(up, plot.bottom - plot.top);
  const across = scale(...ends, plot.left, plot.right, view.logx);
  const svg = picture(width, height, curveSentence(lines, view));
  svg.setAttribute("tabindex", "0");
  const clip = { x: plot.left, y: plot.top - 3, width: plot.right - plot.left, height: plot.bottom - plot.top + 4 };
  const clipped = number ? `curves-clip-${number}` : "curves-clip";
  svg.append(draw("clipPath", { id: clipped }, draw("rect", clip)));
  svg.append(axes(plot, across, up, { x: axisName(view), y: metricName(view) }));
  const inside = draw("g", { "clip-path": `url(#${clipped})` });
  inside.append(...lines.map((one) => groupMarks(one, view, across, up, plot)));
  if (level !== null) inside.append(line(plot.left, up.at(level), plot.right, up.at(level), { class: "goal" }));
  const passing = draw("g", { "data-passing": "", id: number ? null : "crosshair" });
  svg.append(inside, passing);
  return { svg, frame: { svg, plot, across, up, passing } };
}

const metricName = (view) => view.metric.label + (view.smooth ? `, mean of ${view.smooth} rounds` : "");
const axisName = (view) => view.axis.label;

/** The line, the band and the marks of one group. */
function groupMarks(one, view, across, up, plot) {
  const group = draw("g", { class: colour(one.place), "data-group": one.group.id });
  const dash = { "stroke-dasharray": dashes(one.place) };
  const stroke = (x, y, kind) => {
    const d = lineThrough(thinned(x, y, across, up));
    if (d) group.append(draw("path", { d, class: `line ${kind}`, ...dash }));
  };
  if (view.seeds) {
    for (const seed of one.seeds) stroke(seed.x, seed.y, "seed");
  } else {
    const { x, mean: middle, count } = one.blend;
    const all = (place) => count[place] === one.seeds.length;
    const [lower, upper] = bandOf(one, view);
    if (lower !== upper) {
      const floor = up.log ? up.back(plot.bottom + 50) : -Infinity;
      const low = lower.map((value, place) => (all(place) ? Math.max(value, floor) : NaN));
      const d = areaBetween(x, low, upper.map((value, place) => (low[place] <= value ? value : NaN)), across, up);
      if (d) group.append(draw("path", { d, class: "band" }));
    }
    stroke(x, middle.map((value, place) => (amidAll(count, place, one.seeds.length) ? NaN : value)), "part");
    stroke(x, middle.map((value, place) => (all(place) ? value : NaN)), "mean");
  }
  for (const seed of one.seeds) if (seed.run.status === "diverged") group.append(cross(seed, across, up, plot));
  return group;
}

/** Whether all seeds have a value here and at every neighbour there is. */
function amidAll(count, place, seeds) {
  return [place - 1, place, place + 1].every((near) => count[near] === undefined || count[near] === seeds);
}

/** × where a diverged seed ends, at the edge if it ran out of the chart. */
function cross(seed, across, up, plot) {
  const last = seed.x.length - 1;
  const x = across.at(seed.x[last]);
  const y = Math.max(plot.top + 5, Math.min(plot.bottom - 5, up.at(seed.y[last])));
  if (!Number.isFinite(x) || !Number.isFinite(y)) return draw("g");
  const d = `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x - 5} ${y + 5}L${x + 5} ${y - 5}`;
  return draw("path", { d, class: "line cross" });
}

function curveWords(data, view, lines, ends) {
  const most = Math.max(0, ...lines.map((one) => one.seeds.length));
  const names = [view, ...besides(data, view)].map(metricName);
  const pieces = [`${names.join(", ")} against ${axisName(view)}`];
  if (view.seeds) pieces.push("one line per seed");
  else if (most > 1) pieces.push({ std: "mean ± one standard deviation over seeds", range: "mean, min and max over seeds", none: "mean over seeds" }[view.band]);
  const words = [`${pieces.join("; ")}.`.replace(/^./, (letter) => letter.toUpperCase())];
  if (view.metric.reading) words.push(view.metric.reading);
  if (!view.seeds && lines.some((one) => one.blend.count.some((count) => count < one.seeds.length))) words.push("Thin where only some seeds have values.");
  if (lines.some((one) => one.seeds.some((seed) => seed.run.status === "diverged"))) words.push("× marks where a seed diverged.");
  const left = ends && (view.logy || view.logx) ? leftOut(lines, view) : 0;
  if (left) words.push(`${left.toLocaleString("en")} ${left === 1 ? "point" : "points"} at or below zero cannot be shown on a log scale.`);
  const silent = data.groups.filter((group) => !wish.hidden.has(group.id) && !lines.some((one) => one.group === group));
  if (silent.length) words.push(`No values here: ${silent.map((group) => group.label).join("; ")}.`);
  return words.join(" ");
}

function leftOut(lines, view) {
  let count = 0;
  for (const { seeds } of lines) {
    for (const { x, y } of seeds) {
      for (let row = 0; row < x.length; row++) count += (view.logx && x[row] <= 0) || (view.logy && y[row] <= 0) ? 1 : 0;
    }
  }
  return count;
}

function curveSentence(lines, view) {
  const ends = lines.map((one) => `${one.group.label} ${short(mean(one.seeds.map((seed) => seed.y[seed.y.length - 1])))}`);
  return `${metricName(view)} against ${axisName(view)}. Last values: ${ends.join(", ")}. Arrow keys move a line along the chart.`;
}

/* Pointer and keys: a line with the values of every group, dragging to zoom, twice to reset. */

function watchPointer(svg) {
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width;
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button === 0) curves.drag = { from: at(event), to: at(event) };
  });
  svg.addEventListener("pointermove", (event) => {
    if (curves.drag) dragTo(svg, event, at(event));
    if (!curves.drag?.moved) pointAt(at(event), event.clientY);
  });
  svg.addEventListener("pointerup", (event) => {
    const drag = curves.drag;
    curves.drag = null;
    if (drag?.moved) return zoomTo(drag.from, drag.to);
    if (event.timeStamp - curves.tap < 350) return showAll();
    curves.tap = event.timeStamp;
    return pointAt(at(event), event.clientY);
  });
  svg.addEventListener("pointercancel", clearPointer);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && !curves.drag) clearPointer();
  });
  svg.addEventListener("blur", clearPointer);
  svg.addEventListener("keydown", stepAlong);
}

function dragTo(svg, event, x) {
  const { drag, frame } = curves;
  drag.to = x;
  if (!drag.moved && Math.abs(drag.to - drag.from) > 8) {
    drag.moved = true;
    svg.setPointerCapture(event.pointerId);
    hideNote();
  }
  if (!drag.moved) return;
  const inside = (place) => Math.max(frame.plot.left, Math.min(frame.plot.right, place));
  const [left, right] = [inside(drag.from), inside(drag.to)].sort((a, b) => a - b);
  const { top, bottom } = frame.plot;
  frame.passing.replaceChildren(draw("rect", { x: left, y: top, width: right - left, height: bottom - top, class: "chosen" }));
}

/** Zoom to what lies between two places of the chart. */
function zoomTo(from, to) {
  const { plot, across } = curves.frame;
  const inside = (place) => Math.max(plot.left, Math.min(plot.right, place));
  const [left, right] = [inside(from), inside(to)].sort((a, b) => a - b);
  if (right - left > 4) wish.zoom = [across.back(left), across.back(right)];
  refresh(updateCurves);
}

function showAll() {
  wish.zoom = undefined;
  refresh(updateCurves);
}

function clearPointer() {
  if (byId("note").hidden && !curves.drag) return;
  curves.drag = null;
  curves.at = null;
  curves.frame?.passing.replaceChildren();
  hideNote();
}

/** The x of a recorded row that is nearest to a place of the chart. */
function nearest(place) {
  const { across } = curves.frame;
  let [best, off] = [null, Infinity];
  for (const { blend: { x } } of curves.lines) {
    const near = firstAtLeast(x, across.back(place));
    for (const value of [x[near - 1], x[near]]) {
      const gap = value === undefined ? NaN : Math.abs(across.at(value) - place);
      if (gap < off && value >= across.low && value <= across.high) [best, off] = [value, gap];
    }
  }
  return best;
}

/** Show the crosshair and every group's value at the row nearest to a place. */
function pointAt(place, clientY) {
  const { frame, lines, view } = curves;
  const value = nearest(Math.max(frame.plot.left, Math.min(frame.plot.right, place)));
  if (value === null) return;
  [curves.at, curves.height] = [value, clientY];
  const x = frame.across.at(value);
  const found = lines.map((one) => ({ one, ...valueAt(one, value) })).filter((entry) => isNumber(entry.middle));
  found.sort((a, b) => (view.metric.larger ? b.middle - a.middle : a.middle - b.middle));
  const dots = found.filter((entry) => Number.isFinite(frame.up.at(entry.middle)))
    .map(({ one, middle }) => draw("circle", { cx: x, cy: frame.up.at(middle), r: 3.5, class: `spot ${colour(one.place)}`, "clip-path": "url(#curves-clip)" }));
  frame.passing.replaceChildren(line(x, frame.plot.top, x, frame.plot.bottom, { class: "hair" }), ...dots);
  const box = frame.svg.getBoundingClientRect();
  const left = box.left + (x * box.width) / frame.svg.viewBox.baseVal.width;
  showNote([tag("b", {}, `${view.axis.label}: ${short(value, 5)}`), noteTable(found)], left, clientY, frame.svg);
}

function noteTable(found) {
  return tag("table", {}, tag("tbody", {}, found.map(({ one, middle, off, count }) => {
    const some = count < one.seeds.length ? ` (${count} of ${one.seeds.length} seeds)` : "";
    const value = count > 1 ? `${short(middle)} ± ${short(off, 2)}${some}` : `${short(middle)}${some}`;
    return tag("tr", {}, tag("td", {}, swatch(one.place)), tag("td", {}, one.group.label), tag("td", {}, value));
  })));
}

/** Mean and spread of a group at an x that need not be one of its own. */
function valueAt(one, value) {
  const here = one.seeds.map((seed) => along(seed, [value])[0]).filter((found) => !Number.isNaN(found));
  return here.length ? { middle: mean(here), off: std(here), count: here.length } : {};
}

function stepAlong(event) {
  const { frame } = curves;
  const box = frame.svg.getBoundingClientRect();
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") return wish.zoom ? showAll() : clearPointer();
  if (!step) return undefined;
  event.preventDefault();
  const all = union(curves.lines.map((one) => one.blend.x));
  const place = curves.at === null || curves.at === undefined ? (step > 0 ? -1 : all.length) : firstAtLeast(all, curves.at);
  const stride = event.shiftKey ? 10 : 1;
  const next = all[Math.max(0, Math.min(all.length - 1, place + step * stride))];
  return pointAt(frame.across.at(next), box.top + box.height / 3);
}

function saveCurves() {
  const { view, lines, frame } = curves;
  const rows = [["group", view.axis.key, view.metric.key, "std", "min", "max", "seeds"]];
  for (const { group, blend: of } of lines) {
    of.x.forEach((x, row) => {
      const shown = frame && x >= frame.across.low && x <= frame.across.high;
      if (shown) rows.push([group.label, x, of.mean[row], of.std[row], of.low[row], of.high[row], of.count[row]]);
    });
  }
  saveText(csv(rows), "text/csv", fileName("curves", "csv"));
}

/** Connect the switches once. */
function startCurves() {
  const keep = (id, word, read) => byId(id).addEventListener("change", () => {
    wish[word] = read(byId(id));
    if (word === "axis") wish.zoom = undefined;
    if (word === "metric") wish.logy = undefined;
    refresh(updateCurves, ...(word === "metric" ? [updateGoal] : []));
  });
  for (const id of ["metric", "axis", "band", "smooth", "beside"]) keep(id, id, (node) => node.value);
  for (const id of ["logx", "logy", "seeds"]) keep(id, id, (node) => (node.checked ? "1" : "0"));
  byId("unzoom").addEventListener("click", showAll);
  const chart = () => [[...byId("curves-chart").querySelectorAll("svg")], curves.lines.map((one) => ({ place: one.place, label: one.group.label }))];
  saveButtons("curves-save", "curves", chart, { CSV: saveCurves });
}
