/* The table of what each group needs to reach a target, and how good it gets. */

const COSTS = ["round", "communications", "exchanges", "bits_up", "bits_down", "bits", "gradients", "seconds"];
const HEADS = { round: "rounds", bits_up: "bits up", bits_down: "bits down", bits: "all bits" };

/** The target: the reader's, or the data's; its value is null when there is none. */
function target(data) {
  const named = wish.goal ?? data.target?.metric ?? chosenKey(data);
  const metric = ranked(data).find((one) => one.key === named) ?? ranked(data)[0];
  if (!metric) return null;
  const proposed = data.target?.metric === metric.key ? data.target.value : null;
  const given = wish.value === undefined ? proposed : wish.value === "" ? null : Number(wish.value);
  return { metric, value: isNumber(given) ? given : null };
}

/** The metrics of which it is known which way is better. */
const ranked = (data) => data.metrics.filter((one) => one.larger !== null);

/** What step sizes were tuned for, and that another target is another tuning. */
function tunedWords(data, goal) {
  if (!data.tuned.length || goal.value === null) return "";
  const same = (one) => one.keys?.includes(goal.metric.key) && one.value === goal.value;
  const words = data.tuned.map((one) => one.words).filter((one, place, all) => all.indexOf(one) === place).join(" and for ");
  return data.tuned.some(same)
    ? `Step sizes were tuned for ${words}.`
    : `Step sizes were tuned for ${words}, not for this target: other step sizes may reach it sooner.`;
}

const chosenKey = (data) => wish.metric ?? data.first?.metric;

/** The costs worth a column: recorded somewhere, and communications only where they are not rounds. */
function costsOf(data) {
  const runs = data.groups.flatMap((group) => group.runs);
  const differs = (run) => (run.columns?.communications ?? []).some((value, row) => isNumber(value) && value !== run.columns.round?.[row]);
  return COSTS.filter((key) => runs.some((run) => run.columns?.[key]?.some(isNumber))
    && (key !== "communications" || runs.some(differs)));
}

/** What a group pays on one axis until all its seeds are as good as the target; `rows` says when they are. */
function costCell(group, key, rows) {
  const paid = group.runs.map((run, number) => run.columns?.[key]?.[rows[number]]).filter(isNumber);
  const missed = group.runs.filter((_, number) => rows[number] < 0);
  const all = group.runs.length;
  if (paid.length && !missed.length) {
    const [words, more] = spread(paid, 3);
    return { value: mean(paid), off: std(paid), words, more, full: true };
  }
  const got = all - missed.length;
  const going = missed.filter((run) => run.status !== "diverged").map((run) => lastOf(run.columns?.[key])).filter(isNumber);
  const least = going.length ? `${brief(Math.min(...going))}+` : missed.length ? "diverged" : "–";
  return { value: 2 - got / (all || 1), words: least, more: got && missed.length ? `(${got} of ${all} seeds)` : "" };
}

/** Best or final values of the metric over a group's seeds; a seed that diverged has no final one. */
function metricCell(group, metric, which) {
  const diverged = which === "final" ? group.runs.filter((run) => run.status === "diverged") : [];
  const better = metric.larger ? Math.max : Math.min;
  const pick = which === "final" ? (found) => found[found.length - 1] : (found) => found.reduce((a, b) => better(a, b));
  const columns = group.runs.filter((run) => !diverged.includes(run)).map((run) => finiteOf(run, metric.key));
  const values = columns.filter((found) => found.length).map(pick);
  if (!values.length) return { value: NaN, words: diverged.length ? "diverged" : "–" };
  const [words, off] = spread(values, 4);
  const more = diverged.length ? `(${diverged.length} of ${group.runs.length} diverged)` : off;
  return { value: mean(values), off: std(values), words, more, full: !diverged.length };
}

/** Columns with their keys, heads and cells, in the order of the groups. */
function goalColumns(data, goal) {
  const costs = goal.value === null ? [] : costsOf(data);
  const rows = data.groups.map((group) => group.runs.map((run) => (costs.length ? reached(run, goal.metric, goal.value) : -1)));
  const cost = (key) => ({
    key, head: HEADS[key] ?? key, larger: false, cells: data.groups.map((group, place) => costCell(group, key, rows[place])),
  });
  const level = (which) => ({
    key: which, head: `${which} ${goal.metric.label}`, larger: goal.metric.larger,
    cells: data.groups.map((group) => metricCell(group, goal.metric, which)),
  });
  return [...costs.map(cost), level("best"), level("final")];
}

/** The order of rows that the reader asked for, [key, down]. */
function sorting(columns) {
  const [key, way] = (wish.sort ?? "").split(":");
  return key === "label" || columns.some((column) => column.key === key) ? [key, way === "down"] : [null, false];
}

function rowOrder(data, columns) {
  const order = data.groups.map((_, place) => place);
  const [key, down] = sorting(columns);
  if (!key) return order;
  const column = columns.find((one) => one.key === key);
  const rank = (a, b) => {
    if (!column) return data.groups[a].label.localeCompare(data.groups[b].label) * (down ? -1 : 1);
    const [one, other] = [column.cells[a], column.cells[b]];
    if (Boolean(one.full) !== Boolean(other.full)) return one.full ? -1 : 1; // what is missing comes last
    return ((one.value - other.value) || 0) * (down && one.full ? -1 : 1);
  };
  return order.sort((a, b) => rank(a, b) || a - b);
}

function updateGoal(data) {
  const goal = target(data);
  const any = goal !== null && data.groups.length > 0;
  byId("goal").hidden = !any;
  if (!any) return;
  offer(byId("goal-metric"), ranked(data).map((one) => [one.key, one.label]), goal.metric.key);
  const field = byId("goal-value");
  if (document.activeElement !== field) field.value = goal.value ?? "";
  byId("goal-sign").textContent = goal.metric.larger ? "at least" : "at most";
  byId("goal-tuned").textContent = tunedWords(data, goal);
  const columns = goalColumns(data, goal);
  const sign = goal.metric.larger ? "≥" : "≤";
  byId("goal-words").textContent = goal.value === null
    ? `Best and final ${goal.metric.label}. Give a target to see what it takes to reach it.`
    : `What each group needs to reach ${goal.metric.label} ${sign} ${goal.value}`;
  byId("goal-note").textContent = goal.value === null ? "" : goalNote(data, columns);
  goalHead(columns);
  goalBody(data, columns);
}

function goalNote(data, columns) {
  const seeds = data.groups.some((group) => group.runs.length > 1);
  const missed = columns.some((column) => column.cells.some((cell) => cell.words.includes("+")));
  return [
    seeds ? "Mean ± standard deviation over seeds." : "",
    boldWords(columns, seeds),
    missed ? "A + means that the target was not reached by then." : "",
  ].filter(Boolean).join(" ");
}

function boldWords(columns, seeds) {
  if (!columns.some((column) => standsOut(column).size)) return "";
  return seeds ? "Bold: the best, and what is within one standard deviation of it." : "Bold: the best.";
}

function goalHead(columns) {
  const head = byId("goal-table").tHead;
  if (changed(head, columns.map((column) => [column.key, column.head]))) {
    const cell = (key, words) => tag("th", { scope: "col", "data-key": key },
      tag("button", { type: "button", click: () => sortBy(key) }, words));
    head.replaceChildren(tag("tr", {}, cell("label", "group"), columns.map((column) => cell(column.key, column.head))));
  }
  const [key, down] = sorting(columns);
  for (const cell of head.rows[0].cells) {
    cell.setAttribute("aria-sort", cell.dataset.key === key ? (down ? "descending" : "ascending") : "none");
  }
}

/** Sort by a column, best first; the other way round when it already is. */
function sortBy(key) {
  const [before, way] = (wish.sort ?? "").split(":");
  const first = ["best", "final"].includes(key) && target(current).metric.larger ? "down" : "up";
  wish.sort = `${key}:${before === key ? (way === "down" ? "up" : "down") : first}`;
  refresh(updateGoal);
}

/** The cells of a column that stand out: the best one, and those within a standard deviation of it. None do where
    that is every group, so that bold always tells groups apart. */
function standsOut({ cells, larger }) {
  const full = cells.filter((cell) => cell.full);
  if (!full.length || cells.length < 2) return new Set();
  const best = full.reduce((one, other) => ((larger ? other.value > one.value : other.value < one.value) ? other : one));
  const near = full.filter((cell) => Math.abs(cell.value - best.value) <= (best.off ?? 0));
  return new Set(near.length < cells.length ? near : []);
}

function goalBody(data, columns) {
  const bold = columns.map(standsOut);
  const rows = rowOrder(data, columns).map((place) => tag("tr", {},
    tag("th", { scope: "row" }, swatch(data.groups[place].look), tag("span", {}, data.groups[place].label)),
    columns.map((column, number) => {
      const { words, more, full } = column.cells[place];
      const shown = bold[number].has(column.cells[place]) ? tag("b", {}, words) : words;
      return tag("td", { class: full ? null : "missed" }, shown, more ? tag("small", {}, ` ${more}`) : null);
    })));
  byId("goal-table").tBodies[0].replaceChildren(...rows);
}

function startGoal() {
  byId("goal-metric").addEventListener("change", () => {
    wish.goal = byId("goal-metric").value;
    wish.value = undefined;
    refresh(updateGoal, updateCurves);
  });
  byId("goal-value").addEventListener("input", () => {
    const given = byId("goal-value").value.trim().replace(",", ".");
    const usable = given === "" || Number.isFinite(Number(given));
    byId("goal-value").setAttribute("aria-invalid", String(!usable));
    if (!usable) return;
    wish.goal = byId("goal-metric").value;
    wish.value = given;
    refresh(updateGoal, updateCurves);
  });
}
