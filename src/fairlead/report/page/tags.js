/* Elements, the note that floats beside the pointer, and the switches kept in the address. */

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** An HTML element; children that are strings become text, never markup. */
function tag(name, attributes = {}, ...children) {
  return dressed(document.createElement(name), attributes, children);
}

/** An SVG element. */
function draw(name, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, name), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const seen = new WeakMap();

/** Whether what a node is to show differs from when this was last asked. */
function changed(node, content) {
  const text = JSON.stringify(content);
  if (seen.get(node) === text) return false;
  seen.set(node, text);
  return true;
}

/** Fill a select with [value, label] pairs, when they are new, and choose one. */
function offer(select, choices, chosen) {
  if (changed(select, choices)) {
    select.replaceChildren(...choices.map(([value, label]) => tag("option", { value }, label)));
  }
  select.value = String(chosen);
}

const opened = new Set();

/** A <details> that stays open when its section is built again. */
function folded(key, summary, ...children) {
  const node = tag("details", { open: opened.has(key) }, tag("summary", {}, summary), ...children);
  node.addEventListener("toggle", () => (node.open ? opened.add(key) : opened.delete(key)));
  return node;
}

/** The width a chart may take; on paper always that of a page, whatever the window. */
const roomIn = (node) => (onPaper() ? 680 : node.clientWidth || 640);

/** A picture for the eye, with a sentence for those who cannot see it. */
function picture(width, height, sentence) {
  const viewBox = `0 0 ${width} ${height}`;
  return draw("svg", { viewBox, width, height, role: "img", "aria-label": sentence });
}

const text = (x, y, words, more = {}) => draw("text", { x, y, ...more }, String(words));
const line = (x1, y1, x2, y2, more = {}) => draw("line", { x1, y1, x2, y2, ...more });

/** The colour of a method's place; groups of one method share it and differ in their dashes. */
const colour = (place) => `s${place % 8}`;
const dashes = (place) => ["", "7 3", "2 3", "9 3 2 3"][Math.floor(place / 8) % 4] || null;

/** A short piece of a group's line, for legends. */
function swatch(place) {
  const stroke = line(1, 7, 21, 7, { class: `line ${colour(place)}`, "stroke-dasharray": dashes(place) });
  return draw("svg", { class: "swatch", viewBox: "0 0 22 14", width: 22, height: 14, "aria-hidden": "true" }, stroke);
}

/** Show a note beside a point of the window, within it; on a small screen above or below the chart. */
function showNote(children, x, y, chart) {
  const note = byId("note");
  note.replaceChildren(...children);
  note.hidden = false;
  const box = note.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const frame = chart.getBoundingClientRect();
  let left = x + 16;
  let top = y - box.height / 2;
  if (room < 560) {
    left = x - box.width / 2;
    top = frame.top - box.height - 6 >= 0 ? frame.top - box.height - 6 : frame.bottom + 6;
  } else if (left + box.width > room - 8) {
    left = x - 16 - box.width;
  }
  note.style.left = `${Math.max(8, Math.min(left, room - box.width - 8))}px`;
  note.style.top = `${Math.max(8, Math.min(top, window.innerHeight - box.height - 8))}px`;
}

function hideNote() {
  byId("note").hidden = true;
}

/* What the reader has chosen. Missing entries mean: as the data propose. Everything read from the
   address is checked where it is used, so that junk there does no harm. */
const wish = { hidden: new Set() };
const WORDS = ["metric", "axis", "band", "smooth", "logx", "logy", "seeds", "goal", "value", "sort", "drift", "split", "beside", "runs", "measure",
  "hetero", "pairs", "layer", "bound", "sets", "kappa"];

/** Take the switches from the address, once the groups are known. */
function readAddress(groups) {
  let given = new URLSearchParams();
  try {
    given = new URLSearchParams(location.hash.slice(1));
  } catch {
    // junk: as if nothing were there
  }
  for (const word of WORDS) wish[word] = given.get(word) ?? undefined;
  const places = (given.get("hide") ?? "").split(",").filter((piece) => /^\d+$/.test(piece));
  wish.hidden = new Set(places.map((place) => groups[Number(place)]?.id).filter(Boolean));
  const ends = (given.get("zoom") ?? "").split("~").map(Number);
  const usable = ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1];
  wish.zoom = usable ? ends : undefined;
}

/** Put the switches into the address, so that a link shows the same view. */
function writeAddress(groups) {
  const given = new URLSearchParams();
  for (const word of WORDS) if (wish[word] !== undefined) given.set(word, wish[word]);
  const places = groups.map((group, place) => (wish.hidden.has(group.id) ? place : -1));
  const hidden = places.filter((place) => place >= 0);
  if (hidden.length) given.set("hide", hidden.join(","));
  if (wish.zoom) given.set("zoom", wish.zoom.map((end) => Number(end.toPrecision(8))).join("~"));
  try {
    history.replaceState(null, "", `#${given}`);
  } catch {
    // some frames forbid it: the page works without
  }
}
