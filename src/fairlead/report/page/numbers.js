/* Numbers as people read them, scales and their ticks. */

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

/** 1234567 → [1e6, "M"]: what to divide by, and what to write after. */
function prefix(value) {
  const size = Math.abs(value);
  const step = size >= 1e3 && size < 1e21 ? Math.min(6, Math.floor(Math.log10(size) / 3 + 1e-12)) : 0;
  return [1000 ** step, PREFIXES[step]];
}

/** A number in few letters: 0.9534, 1,234, 5.1G, 3.2e-5. */
function short(value, digits = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return value.toLocaleString("en");
  if ((size < 1e-3 && size > 0) || size >= 1e21) return value.toExponential(digits - 2).replace("e+", "e");
  const [unit, letter] = size < 1e4 ? [1, ""] : prefix(value);
  return `${Number((value / unit).toPrecision(digits))}${letter}`;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The standard deviation of the values themselves, as numpy's std. */
function std(values) {
  const middle = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
}

/** A number in three digits or so, with a letter from 10,000 on: 9400, 74k, 5.58M. */
const brief = (value) => (Math.abs(value) < 1e4 || Math.abs(value) >= 1e21 ? short(value, 3) : `${Number((value / prefix(value)[0]).toPrecision(3))}${prefix(value)[1]}`);

/** Mean and standard deviation in one unit, ["46.7", "± 4.1"]; of a single value only itself. */
function spread(values, digits) {
  const middle = mean(values);
  if (values.length === 1) return [digits === 4 ? short(middle) : brief(middle), ""];
  if (!isNumber(middle) || Math.abs(middle) >= 1e21) return [short(middle), ""];
  const [unit, letter] = Math.abs(middle) < 1e4 ? [1, ""] : prefix(middle);
  const size = Math.floor(Math.log10(Math.abs(middle / unit) || 1));
  const places = Math.max(0, Math.min(8, digits - 1 - size));
  const digitsOf = { minimumFractionDigits: places, maximumFractionDigits: places };
  const words = (value) => `${(value / unit).toLocaleString("en", digitsOf)}${letter}`;
  return [words(middle), `± ${words(std(values))}`];
}

/** A map from numbers to places on the page. */
function scale(low, high, from, to, log) {
  const into = log ? Math.log10 : (value) => value;
  const start = into(low);
  const slope = (to - from) / (into(high) - start || 1);
  return {
    low,
    high,
    log,
    at: (value) => from + (into(value) - start) * slope,
    back: (place) => (log ? 10 ** (start + (place - from) / slope) : start + (place - from) / slope),
  };
}

/** Ends that leave some air around a range, also around a single number. */
function roomy(low, high, log, air) {
  if (log) {
    const span = Math.log10(high / low) || 0.5;
    return [low / 10 ** (span * air), high * 10 ** (span * air)];
  }
  const span = high - low || Math.abs(high) * 0.2 || 1;
  return [low - span * air, high + span * air];
}

/** About `count` ticks of a scale, each a value and a label. */
function ticks(of, count) {
  const decades = of.log ? Math.log10(of.high / of.low) : 0;
  return of.log && decades >= 1 ? decadeTicks(of, decades, count) : evenTicks(of, count);
}

function evenTicks(of, count) {
  const rough = (of.high - of.low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(of.low / step - 1e-9); place * step <= of.high * (1 + 1e-12) + step * 1e-9; place++) {
    const value = Number((place * step).toPrecision(12));
    if (!of.log || value > 0) found.push({ value, label: tickLabel(value, step) });
    if (found.length > 50) break;
  }
  return found;
}

function tickLabel(value, step) {
  if (value === 0) return "0";
  if (step < 1e-5 || Math.abs(value) >= 1e21) return value.toExponential(2).replace("e+", "e");
  const [unit, letter] = prefix(value);
  const digits = Math.max(0, Math.min(8, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return `${(value / unit).toFixed(digits).replace(/\.0+$/, "")}${letter}`;
}

function decadeTicks(of, decades, count) {
  const stride = Math.ceil(decades / count);
  const within = decades <= 1.5 ? [1, 2, 5] : decades <= 2.5 ? [1, 3] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(of.low)); power <= Math.log10(of.high); power++) {
    if (((power % stride) + stride) % stride) continue;
    for (const times of within) {
      const value = Number(`${times}e${power}`);
      if (value >= of.low && value <= of.high) found.push({ value, label: decadeLabel(value, times, power) });
    }
  }
  return found;
}

function decadeLabel(value, times, power) {
  if (power >= 21 || power < -3) return `${times === 1 ? "" : `${times}·`}10${raised(power)}`;
  const [unit, letter] = prefix(value);
  return `${Number((value / unit).toPrecision(3))}${letter}`;
}

const raised = (power) => [...String(power)].map((letter) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(letter)]).join("");

/** Grid, ticks and names of the axes of a chart whose plot lies at {left, top, right, bottom}. */
function axes(plot, across, up, names) {
  const group = draw("g", { class: "axes" });
  const width = plot.right - plot.left;
  for (const { value, label } of ticks(up, rowsIn(plot.bottom - plot.top))) {
    const y = up.at(value);
    group.append(line(plot.left, y, plot.right, y, { class: "grid" }));
    group.append(text(plot.left - 7, y + 4, label, { "text-anchor": "end" }));
  }
  for (const { value, label } of ticks(across, Math.max(3, Math.round(width / 95)))) {
    const x = across.at(value);
    group.append(line(x, plot.bottom, x, plot.bottom + 4, { class: "frame" }));
    group.append(text(x, plot.bottom + 18, label, { "text-anchor": "middle" }));
  }
  group.append(line(plot.left, plot.bottom, plot.right, plot.bottom, { class: "frame" }));
  group.append(text(plot.right, plot.bottom + 36, cut(names.x, plot.right), { "text-anchor": "end", class: "name" }));
  group.append(text(2, plot.top - 10, cut(names.y, plot.right), { class: "name" }));
  return group;
}

/** Words that fit into so many pixels. */
function cut(words, room) {
  const most = Math.max(4, Math.floor(room / 7));
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

const rowsIn = (height) => Math.max(3, Math.round(height / 48));

/** How much room the labels of an upright scale need at the left. */
function labelRoom(up, height) {
  const labels = ticks(up, rowsIn(height)).map((tick) => tick.label.length);
  return Math.max(30, 12 + 7 * Math.max(0, ...labels));
}
