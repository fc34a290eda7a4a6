/* The page as a whole: its data, its theme, and fresh data while it is live. */

const root = document.documentElement;
let current = null;

/** The data with every list in place, so that missing keys leave sections out and nothing breaks. */
function settled(data) {
  const list = (value) => (Array.isArray(value) ? value.filter((one) => one !== null) : []);
  const groups = list(data.groups).map((group, place, all) => {
    const label = String(group.label ?? group.method ?? `group ${place + 1}`);
    const again = all.slice(0, place).filter((other) => other.label === group.label).length;
    return { ...group, label, look: isNumber(group.look) ? group.look : place, id: again ? `${label} (${again + 1})` : label, runs: list(group.runs) };
  });
  const recorded = (key) => groups.some((group) => group.runs.some((run) => run.columns?.[key]?.some(isNumber)));
  const named = (value) => list(value).filter((one) => recorded(one.key)).map((one) => ({ ...one, label: one.label ?? one.key }));
  const rest = Object.fromEntries(["splits", "drift", "sensitivity", "notes", "citations", "tuned", "clients",
    "heterogeneity", "pairs", "bounds", "coverage"].map((key) => [key, list(data[key])]));
  return { ...data, ...rest, title: data.title || "fairlead", groups, axes: named(data.axes), metrics: named(data.metrics) };
}

const PARTS = [updateHead, updateCurves, updateGoal, updateClients, updateNotes, updateSteps, updateHetero, updateDrift,
  updatePairs, updateBound, updateSets, updateSplit, updateSettings, updateRuns, updateCite];

/** Show everything anew. */
function show() {
  for (const update of PARTS) update(current);
  byId("empty").hidden = [...document.querySelectorAll("main > section")].some((section) => !section.hidden);
}

/** Keep the switches in the address, and show anew the parts that depend on the one just used. */
function refresh(...parts) {
  writeAddress(current.groups);
  for (const update of parts) update(current);
}

/* Theme: as the system says, or light, or dark. Paper is always light. */

const dark = matchMedia("(prefers-color-scheme: dark)");
const paper = matchMedia("print");
let preference = remembered();
let printing = false;
const onPaper = () => printing || paper.matches;

function remembered() {
  try {
    const kept = localStorage.getItem("fairlead-theme");
    return ["light", "dark"].includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // pages from files may have no storage
  }
}

function theme() {
  if (onPaper()) return "light";
  return preference === "auto" ? (dark.matches ? "dark" : "light") : preference;
}

function applyTheme() {
  root.dataset.theme = theme();
  byId("theme-words").textContent = preference;
  byId("theme").setAttribute("aria-label", `theme: ${preference}`);
  for (const update of current ? [updateDrift, updatePairs] : []) update(current); // their colours are painted, not styled
}

/** Draw for paper, or again for the screen. */
function turnPage(now) {
  printing = now;
  applyTheme();
  show();
}

function nextTheme() {
  preference = { auto: "light", light: "dark", dark: "auto" }[preference];
  try {
    localStorage.setItem("fairlead-theme", preference);
  } catch {
    // it holds until the page is closed
  }
  applyTheme();
}

/* Live: ask for newer data every two seconds, more rarely if an answer takes long. */

const live = { tag: root.dataset.tag, updated: Date.now(), lost: false, trouble: "", wait: 2000 };

async function ask() {
  const start = Date.now();
  let fresh = null;
  try {
    const answer = await fetch("data.json", { cache: "no-store", headers: live.tag ? { "If-None-Match": live.tag } : {} });
    const content = answer.status === 304 ? {} : await answer.json();
    live.lost = false;
    live.trouble = answer.ok || answer.status === 304 ? "" : content.error ?? "unreadable response";
    if (answer.ok) [fresh, live.tag] = [content, answer.headers.get("ETag") ?? ""];
  } catch {
    live.lost = true;
  }
  if (fresh) take(fresh);
  live.wait = Math.max(2000, 4 * (Date.now() - start));
  tellLive();
}

function take(data) {
  current = settled(data);
  live.updated = Date.now();
  document.title = current.title;
  show();
}

function tellLive() {
  const seconds = Math.max(0, Math.round((Date.now() - live.updated) / 1000));
  const ago = seconds < 90 ? `${seconds} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  const state = live.lost ? "lost" : live.trouble ? "waiting" : "on";
  const words = { lost: "connection lost", waiting: `waiting: ${live.trouble}`, on: `live · updated ${ago} ago` }[state];
  byId("live").className = state;
  byId("live-words").textContent = words;
  byId("live").title = live.trouble;
}

async function keepAsking() {
  for (;;) {
    await new Promise((done) => setTimeout(done, live.wait));
    if (!document.hidden) await ask();
  }
}

function startLive() {
  byId("live").hidden = false;
  tellLive();
  setInterval(tellLive, 1000);
  keepAsking();
}

/* Start. */

function start() {
  current = settled(JSON.parse(byId("data").textContent));
  readAddress(current.groups);
  applyTheme();
  startCurves();
  startGoal();
  startSteps();
  startMaps();
  startClients();
  startMeasures();
  show();
  byId("theme").addEventListener("click", nextTheme);
  dark.addEventListener("change", applyTheme);
  paper.addEventListener("change", () => turnPage(false));
  window.addEventListener("beforeprint", () => turnPage(true));
  window.addEventListener("afterprint", () => turnPage(false));
  window.addEventListener("hashchange", () => {
    readAddress(current.groups);
    show();
  });
  window.addEventListener("scroll", clearPointer, { passive: true });
  let width = root.clientWidth;
  window.addEventListener("resize", () => {
    if (root.clientWidth !== width && !onPaper()) show();
    width = root.clientWidth;
  });
  if (root.dataset.live === "yes") startLive();
}

start();
