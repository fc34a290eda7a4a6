/* How much the step size matters: rounds to the target and the final metric against it. */

function updateSteps(data) {
  const usable = data.sensitivity.filter((one) => one.lr?.filter((lr) => isNumber(lr) && lr > 0).length > 1);
  byId("steps").hidden = !usable.length;
  if (!usable.length) return;
  const chart = byId("steps-chart");
  const room = roomIn(chart);
  const entries = usable.map((one, number) => ({ ...one, place: placeOf(data, one, number) }));
  const metric = labelOf(data, usable[0].metric ?? "metric");
  const panels = [
    { key: "rounds", name: "rounds to the target", larger: false },
    { key: "final", name: `final ${metric}`, larger: usable[0].larger ?? data.metrics.find((one) => one.key === usable[0].metric)?.larger ?? true },
  ].filter((panel) => entries.some((one) => one[panel.key]?.some(isNumber)));
  const width = room >= 620 && panels.length > 1 ? Math.floor((room - 24) / 2) : room;
  chart.replaceChildren(...panels.map((panel) => stepsPicture(panel, entries, width)));
  if (changed(byId("steps-legend"), entries.map((one) => [one.place, one.label]))) {
    byId("steps-legend").replaceChildren(...entries.map((one) => tag("span", {}, swatch(one.place), tag("span", {}, one.label))));
  }
  const missed = entries.some((one) => one.lr.some((lr, number) => isNumber(lr) && !isNumber(one.rounds?.[number])));
  const marked = missed && panels[0]?.key === "rounds" ? " × at the top: the target was not reached." : "";
  byId("steps-words").textContent = `A ring marks the chosen step size.${marked}`;
}

const labelOf = (data, key) => data.metrics.find((one) => one.key === key)?.label ?? String(key).replaceAll("_", " ");

/** The colour of the group that a line belongs to, else one of its own. */
function placeOf(data, one, number) {
  const found = data.groups.findIndex((group) => group.label === one.label || group.method === one.label);
  return found >= 0 ? data.groups[found].look : Math.max(-1, ...data.groups.map((group) => group.look)) + 1 + number;
}

function stepsPicture(panel, entries, width) {
  const height = 260;
  const plot = { top: 30, right: width - 14, bottom: height - 44 };
  const lrs = extent(entries.map((one) => one.lr.filter(isNumber)), true);
  const values = extent(entries.map((one) => (one[panel.key] ?? []).filter(isNumber)), false);
  const far = values.low > 0 && values.high / values.low > 30;
  const up = scale(...roomy(values.low, values.high, far, 0.08), plot.bottom, plot.top, far);
  plot.left = labelRoom(up, plot.bottom - plot.top);
  const across = scale(...roomy(lrs.low, lrs.high, true, 0.06), plot.left, plot.right, true);
  const best = entries.map((one) => `${one.label} ${short(one.best)}`).join(", ");
  const svg = picture(width, height, `${panel.name} against the step size. Chosen step sizes: ${best}.`);
  svg.append(axes(plot, across, up, { x: "step size", y: panel.name }));
  const aside = (row) => (panel.key === "rounds" ? 8 * (row - (entries.length - 1) / 2) : null);
  svg.append(...entries.map((one, row) => stepsLine(one, one[panel.key] ?? [], across, up, plot, aside(row))));
  noteCells(svg, (x) => stepsNote(panel, entries, across.back(x)));
  return svg;
}

/** One method's line; where its value is missing an ×, a little aside so that none hides another. */
function stepsLine(one, values, across, up, plot, aside) {
  const rows = one.lr.map((lr, number) => [lr, values[number]]).filter(([lr]) => isNumber(lr) && lr > 0).sort((a, b) => a[0] - b[0]);
  const there = rows.filter(([, value]) => isNumber(value));
  const group = draw("g", { class: colour(one.place) });
  const path = lineThrough([there.map(([lr, value]) => ({ left: across.at(lr), top: up.at(value) }))].filter((piece) => piece.length));
  if (path) group.append(draw("path", { d: path, class: "line mean", "stroke-dasharray": dashes(one.place) }));
  for (const [lr, value] of rows) {
    const [x, y] = [across.at(lr), isNumber(value) ? up.at(value) : plot.top + 2];
    if (isNumber(value)) group.append(draw("circle", { cx: x, cy: y, r: 3.2, class: "spot" }));
    else if (aside !== null) group.append(draw("path", { d: `M${x + aside - 3} ${y - 3}l6 6m-6 0l6 -6`, class: "line cross" }));
    if (lr === one.best && isNumber(value)) group.append(draw("circle", { cx: x, cy: y, r: 7, class: "ring" }));
  }
  return group;
}

/** The values of every method at the step size nearest to the pointer. */
function stepsNote(panel, entries, at) {
  const all = entries.flatMap((one) => one.lr.filter((lr) => isNumber(lr) && lr > 0));
  const near = all.reduce((best, lr) => (Math.abs(Math.log(lr / at)) < Math.abs(Math.log(best / at)) ? lr : best));
  const rows = entries.filter((one) => one.lr.includes(near)).map((one) => {
    const value = one[panel.key]?.[one.lr.indexOf(near)];
    return `${one.label}: ${isNumber(value) ? short(value) : "not reached"}`;
  });
  return [`step size ${short(near)}: ${panel.name}`, ...rows];
}

function startSteps() {
  const entries = () => current.sensitivity.map((one, number) => ({ place: placeOf(current, one, number), label: one.label }));
  saveButtons("steps-save", "step sizes", () => [[...byId("steps-chart").querySelectorAll("svg")], entries()]);
}
