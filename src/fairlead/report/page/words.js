/* What is told in words: the head, settings, runs, notes and citations. */

const STATES = ["running", "diverged", "broken off", "interrupted", "target", "finished"];
const STATE_WORDS = { target: "reached the target" };
const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

function updateHead(data) {
  const runs = data.groups.flatMap((group) => group.runs.map((run) => ({ ...run, group })));
  byId("title").textContent = data.title;
  const pieces = [];
  if (runs.length) pieces.push(count(data.groups.length, "group"), count(runs.length, "run"));
  const made = new Date(data.made ?? NaN);
  if (!Number.isNaN(made.getTime())) pieces.push(made.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" }));
  byId("facts").textContent = pieces.join(" · ");
  byId("foot").textContent = data.fairlead ? `made with fairlead ${data.fairlead}` : "made with fairlead";
  const states = [...new Set([...STATES, ...runs.map((run) => run.status ?? "unknown")])];
  const found = states.map((state) => [state, runs.filter((run) => (run.status ?? "unknown") === state)]).filter(([, of]) => of.length);
  byId("chips").hidden = !found.length;
  if (changed(byId("chips"), found.map(([state, of]) => [state, of.map(runName)]))) {
    byId("chips").replaceChildren(...found.map(([state, of]) => chip(state, of, runs.length)));
  }
}

const runName = (run) => `${run.group.label}, seed ${run.seed ?? "–"}`;

/** How many runs are in a state, and which, where they are few and need a look. */
function chip(state, runs, all) {
  const look = !["finished", "target"].includes(state);
  const number = runs.length === all && all > 1 ? `all ${all}` : String(runs.length);
  const names = look && runs.length <= 2 ? runs.map(runName).join("; ") : "";
  return tag("li", { class: `chip ${state.replace(" ", "-")}`, title: look ? runs.map(runName).join("\n") : null },
    tag("span", { class: "dot" }), tag("span", {}, `${number} ${STATE_WORDS[state] ?? state}`), names ? tag("small", {}, names) : null);
}

/** Nested settings as one list of dotted names and values. */
function flat(settings, before = "") {
  if (settings === null || typeof settings !== "object" || Array.isArray(settings)) return [];
  return Object.entries(settings).flatMap(([key, value]) => {
    const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;
    return nested ? flat(value, `${before}${key}.`) : [[`${before}${key}`, value]];
  });
}

function settingWords(value) {
  if (value === undefined || value === null) return "–";
  if (typeof value === "number") return String(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function updateSettings(data) {
  const groups = data.groups.map((group) => ({ label: group.label, look: group.look, id: group.id, settings: new Map(flat(group.settings ?? {})) }));
  const any = groups.some((group) => group.settings.size);
  byId("settings").hidden = !any;
  if (!any || !changed(byId("settings-body"), data.groups.map((group) => [group.label, group.settings]))) return;
  const names = [...new Set(groups.flatMap((group) => [...group.settings.keys()]))];
  const same = (name) => groups.every((group) => settingWords(group.settings.get(name)) === settingWords(groups[0].settings.get(name)));
  const [differ, shared] = [names.filter((name) => !same(name)), names.filter(same)];
  const parts = [];
  if (differ.length) parts.push(tag("p", { class: "small" }, "Where the groups differ:"), differenceTable(groups, differ));
  const many = groups.length > 1;
  const held = shared.map((name) => [name, groups[0].settings.get(name)]);
  if (shared.length) parts.push(folded("shared", `${count(shared.length, "setting")}${many ? " shared by all groups" : ""}`, pairsList(held)));
  const each = groups.map((group) => folded(`all ${group.id}`, group.label, pairsList([...group.settings])));
  if (many) parts.push(folded("every", "everything, group by group", each));
  byId("settings-body").replaceChildren(...parts);
}

function scrollable(label, table) {
  return tag("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

function differenceTable(groups, names) {
  const head = tag("tr", {}, tag("th", { scope: "col" }, "group"), names.map((name) => tag("th", { scope: "col" }, name)));
  const cell = (words) => tag("td", { class: words.length > 36 ? "sentence" : null }, words);
  const rows = groups.map((group) => tag("tr", {},
    tag("th", { scope: "row" }, swatch(group.look), tag("span", {}, group.label)),
    names.map((name) => cell(settingWords(group.settings.get(name))))));
  return scrollable("Settings that differ", tag("table", {}, tag("thead", {}, head), tag("tbody", {}, rows)));
}

function pairsList(pairs) {
  return tag("dl", {}, pairs.flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, settingWords(value))]));
}

/** The columns of the table of runs: a name, and what a run has there. */
function runColumns(data) {
  const metric = data.metrics.find((one) => one.key === data.first?.metric) ?? data.metrics[0];
  const last = ({ run }) => lastOf(run.columns?.[metric.key]);
  return [
    ["group", ({ group }) => group.label],
    ["seed", ({ run }) => run.seed],
    ["status", ({ run }) => run.status],
    ["rounds", ({ run }) => run.rounds],
    ...(metric ? [[`final ${metric.label}`, last]] : []),
    ["folder", ({ run }) => run.folder],
  ];
}

/** What has no value comes last, whichever way the others are. */
function inOrder(rows, read, down) {
  const none = (row) => read(row) === undefined || read(row) === null;
  const rank = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const sorted = rows.filter((row) => !none(row)).sort((a, b) => rank(read(a), read(b)) * (down ? -1 : 1));
  return [...sorted, ...rows.filter(none)];
}

function updateRuns(data) {
  const runs = data.groups.flatMap((group) => group.runs.map((run) => ({ group, run })));
  byId("runs").hidden = !runs.length;
  if (!runs.length) return;
  const columns = runColumns(data);
  const [name, way] = (wish.runs ?? "").split(":");
  const by = columns.findIndex(([head]) => head === name);
  const sorted = by < 0 ? runs : inOrder(runs, columns[by][1], way === "down");
  const words = (value) => (typeof value === "number" ? short(value) : String(value ?? "–"));
  const told = sorted.map((row) => columns.map(([, read]) => words(read(row))));
  if (!changed(byId("runs-body"), [told, wish.runs])) return;
  const order = (place) => (place !== by ? "none" : way === "down" ? "descending" : "ascending");
  const heads = columns.map(([head], place) => tag("th", { scope: "col", "aria-sort": order(place) },
    tag("button", { type: "button", click: () => sortRuns(head) }, head)));
  const rows = told.map((cells, row) => tag("tr", {},
    tag("th", { scope: "row" }, swatch(sorted[row].group.look), tag("span", {}, cells[0])),
    cells.slice(1).map((value) => tag("td", {}, value))));
  const table = tag("table", { class: "runs" }, tag("thead", {}, tag("tr", {}, heads)), tag("tbody", {}, rows));
  byId("runs-body").replaceChildren(folded("runs", `${count(runs.length, "run")} and their folders`, scrollable("Runs", table)));
}

function sortRuns(head) {
  const [before, way] = (wish.runs ?? "").split(":");
  wish.runs = `${head}:${before === head && way !== "down" ? "down" : "up"}`;
  refresh(updateRuns);
}

function updateNotes(data) {
  byId("notes").hidden = !data.notes.length;
  if (changed(byId("notes-list"), data.notes)) byId("notes-list").replaceChildren(...data.notes.map((note) => tag("li", {}, String(note))));
}

function updateCite(data) {
  byId("cite").hidden = !data.citations.length;
  if (!changed(byId("cite-list"), data.citations)) return;
  byId("cite-list").replaceChildren(...data.citations.map((one) => {
    const button = tag("button", { type: "button", click: () => copyText(one.bibtex ?? "", button) }, "copy BibTeX");
    const head = tag("div", { class: "bar" }, tag("span", {}, one.short ?? one.key ?? ""), one.bibtex ? button : null);
    return tag("li", {}, head, one.bibtex ? folded(`cite ${one.key}`, "BibTeX", tag("pre", {}, one.bibtex)) : null);
  }));
}

/** Copy, also where a page from a file may not use the clipboard. */
async function copyText(words, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    const area = tag("textarea", { class: "away", readonly: true });
    area.value = words;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  button.textContent = done ? "copied" : "select it below";
  setTimeout(() => (button.textContent = "copy BibTeX"), 2000);
}
