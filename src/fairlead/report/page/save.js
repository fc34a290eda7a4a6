/* Files to keep: a chart as SVG or PNG, the curves as CSV. */

const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap",
  "opacity", "fill-opacity", "font-family", "font-size", "font-weight", "text-anchor", "image-rendering"];

/** Buttons that save what a function draws at the moment they are pressed. */
function saveButtons(place, name, chart, more = {}) {
  const button = (label, words, act) =>
    tag("button", { type: "button", title: words, "aria-label": words, click: act }, label);
  const drawn = (keep) => () => {
    const [charts, entries] = chart();
    if (charts.length) keep(standalone(charts, entries), name);
  };
  byId(place).replaceChildren(
    button("SVG", `save the ${name} as SVG`, drawn(saveSvg)),
    button("PNG", `save the ${name} as PNG`, drawn(savePng)),
    ...Object.entries(more).map(([label, act]) => button(label, `save the ${name} as ${label}`, act)),
  );
}

/** Copies of charts side by side with their colours written into them, and a legend below. */
function standalone(charts, entries) {
  const sizes = charts.map((chart) => chart.viewBox.baseVal);
  const width = sizes.reduce((sum, size) => sum + size.width, 20);
  const tall = Math.max(...sizes.map((size) => size.height)) + 14;
  const whole = picture(width, tall + 22 * entries.length + 8, charts[0].getAttribute("aria-label"));
  const paper = getComputedStyle(byId("curves")).backgroundColor;
  whole.append(draw("rect", { width: "100%", height: "100%", fill: paper }));
  let left = 12;
  charts.forEach((chart, place) => {
    whole.append(draw("g", { transform: `translate(${left} 10)` }, ...styledCopy(chart).childNodes));
    left += sizes[place].width;
  });
  entries.forEach(({ place, label }, row) => {
    const key = draw("g", { transform: `translate(14 ${tall + 22 * row})` });
    key.append(line(0, 8, 22, 8, { class: `line ${colour(place)}`, "stroke-dasharray": dashes(place) }), text(30, 12, label));
    charts[0].append(key); // for a moment, so that it has a style
    whole.append(styledCopy(key));
    key.remove();
  });
  whole.setAttribute("xmlns", SVG);
  return whole;
}

function styledCopy(node) {
  const copy = node.cloneNode(true);
  const [from, to] = [[node, ...node.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((old, place) => {
    const style = getComputedStyle(old);
    for (const name of STYLED) to[place].setAttribute(name, style.getPropertyValue(name));
    to[place].removeAttribute("class");
  });
  copy.querySelectorAll("[data-passing]").forEach((passing) => passing.remove());
  return copy;
}

const fileName = (name, ending) => `${(document.title || "report").replace(/[^\w-]+/g, "-").slice(0, 60)}-${name.replace(/\W+/g, "-")}.${ending}`;

function saveBlob(blob, file) {
  const url = URL.createObjectURL(blob);
  tag("a", { href: url, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function saveText(words, kind, file) {
  saveBlob(new Blob([words], { type: kind }), file);
}

function saveSvg(svg, name) {
  saveText(new XMLSerializer().serializeToString(svg), "image/svg+xml", fileName(name, "svg"));
}

/** Paint the SVG on a canvas at twice its size. */
function savePng(svg, name) {
  const image = new Image();
  const size = svg.viewBox.baseVal;
  image.addEventListener("load", () => {
    const canvas = tag("canvas", { width: 2 * size.width, height: 2 * size.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveBlob(blob, fileName(name, "png")), "image/png");
  });
  const source = new XMLSerializer().serializeToString(svg);
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
}

/** Rows of cells as CSV, text in quotes. */
function csv(rows) {
  const cell = (value) => (typeof value === "string" ? `"${value.replaceAll('"', '""')}"` : Number.isFinite(value) ? value : "");
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
