/* From the columns of runs to lines: pairs of numbers, means over seeds, fewer points for drawing. */

/** The finite points of one run, by rising x; a window averages over that many rounds before. */
function points(run, axis, metric, window) {
  const [xs, ys] = [run.columns?.[axis] ?? [], run.columns?.[metric] ?? []];
  const rounds = run.columns?.round ?? [];
  const kept = [];
  for (let row = 0; row < Math.min(xs.length, ys.length); row++) {
    if (isNumber(xs[row]) && isNumber(ys[row])) kept.push(row);
  }
  if (kept.some((row, place) => place && xs[row] < xs[kept[place - 1]])) kept.sort((a, b) => xs[a] - xs[b]);
  const at = (row) => (isNumber(rounds[row]) ? rounds[row] : row);
  const y = kept.map((row, place) => {
    let [sum, count] = [ys[row], 1];
    for (let back = place - 1; back >= 0 && at(row) - at(kept[back]) < window; back--) {
      sum += ys[kept[back]];
      count++;
    }
    return sum / count;
  });
  return { x: Float64Array.from(kept, (row) => xs[row]), y: Float64Array.from(y), run };
}

/** Mean, spread and number of seeds wherever one has a value; `whole` where all have. */
function blend(seeds) {
  const x = union(seeds.map((seed) => seed.x));
  const values = seeds.map((seed) => along(seed, x));
  const made = { x, seeds: seeds.length, count: new Uint16Array(x.length) };
  for (const name of ["mean", "std", "low", "high"]) made[name] = new Float64Array(x.length).fill(NaN);
  for (let place = 0; place < x.length; place++) {
    let [count, sum, square, low, high] = [0, 0, 0, Infinity, -Infinity];
    for (const { [place]: value } of values) {
      if (Number.isNaN(value)) continue;
      count++;
      sum += value;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const middle = sum / count;
    for (const { [place]: value } of values) if (!Number.isNaN(value)) square += (value - middle) ** 2;
    made.count[place] = count;
    made.mean[place] = middle;
    made.std[place] = Math.sqrt(square / count);
    made.low[place] = low;
    made.high[place] = high;
  }
  return made;
}

/** The numbers of several rising lists, each once. */
function union(lists) {
  const all = new Float64Array(lists.reduce((sum, list) => sum + list.length, 0));
  lists.reduce((place, list) => (all.set(list, place), place + list.length), 0);
  return all.sort().filter((value, place) => !place || value !== all[place - 1]);
}

/** A seed's values on a grid, straight between its points and missing outside them. */
function along(seed, grid) {
  const { x, y } = seed;
  let place = 0;
  return Float64Array.from(grid, (at) => {
    if (!x.length || at < x[0] || at > x[x.length - 1]) return NaN;
    while (place + 1 < x.length && x[place + 1] <= at) place++;
    if (x[place] === at) return y[place];
    return y[place] + ((y[place + 1] - y[place]) * (at - x[place])) / (x[place + 1] - x[place]);
  });
}

/** The first place of a rising list that holds at least `value`. */
function firstAtLeast(list, value) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The places of x within a range, and one beyond at either side. */
function within(x, low, high) {
  return [Math.max(0, firstAtLeast(x, low) - 1), Math.min(x.length, firstAtLeast(x, high) + 2)];
}

/** Pieces of a line as points of the page. Of the points that fall into one column of pixels the
    first, the lowest, the highest and the last are kept, so that no spike is lost. */
function thinned(x, y, across, up) {
  const pieces = [];
  let [piece, column] = [null, null];
  const flush = () => {
    if (column) piece.push(...new Set([column.first, column.low, column.high, column.last].sort((a, b) => a.place - b.place)));
    column = null;
  };
  const [from, to] = within(x, across.low, across.high);
  for (let place = from; place < to; place++) {
    const [left, top] = [across.at(x[place]), up.at(y[place])];
    if (!Number.isFinite(left) || !Number.isFinite(top)) {
      flush();
      piece = null;
      continue;
    }
    if (!piece) pieces.push((piece = []));
    const point = { place, left, top: Math.max(-9999, Math.min(9999, top)) };
    if (column && Math.floor(left) !== Math.floor(column.first.left)) flush();
    if (!column) column = { first: point, low: point, high: point, last: point };
    if (point.top > column.low.top) column.low = point;
    if (point.top < column.high.top) column.high = point;
    column.last = point;
  }
  flush();
  return pieces;
}

const joined = (piece) => piece.map(({ left, top }) => `${left.toFixed(1)} ${top.toFixed(1)}`).join("L");
const lineThrough = (pieces) => pieces.map((piece) => `M${joined(piece)}${piece.length === 1 ? "h0.01" : ""}`).join("");

/** The outline between two lines over the same x. */
function areaBetween(x, low, high, across, up) {
  const tops = thinned(x, high, across, up);
  const bottoms = thinned(x, low, across, up);
  return tops.map((top, place) => `M${joined(top)}L${joined([...(bottoms[place] ?? [])].reverse())}Z`).join("");
}

/** The first row in which a run is as good as the target, or -1. */
function reached(run, metric, value) {
  const good = metric.larger ? (found) => found >= value : (found) => found <= value;
  return (run.columns?.[metric.key] ?? []).findIndex((found) => isNumber(found) && good(found));
}

/** The last finite number of a column. */
const lastOf = (column) => (column ?? []).findLast(isNumber);

/** The finite numbers of a column. */
const finiteOf = (run, key) => (run.columns?.[key] ?? []).filter(isNumber);
