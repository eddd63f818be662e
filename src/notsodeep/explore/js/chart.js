// Small line charts as SVG: axes, curves with their names beside them, bands, marks, and a reading under the pointer or
// the arrow keys. No library, no state besides the drawing itself.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {object} Curve
 * @property {string} name
 * @property {string} kind class of its colour: deq, twin, plain, scaled, other
 * @property {number[]} x
 * @property {number[]} y
 * @property {boolean} [area] filled down to the axis
 *
 * @typedef {object} Mark a vertical line with a word
 * @property {number} x
 * @property {string} [name]
 * @property {string} kind
 *
 * @typedef {object} Chart
 * @property {string} title what the figure says, read out by screen readers
 * @property {string} xLabel
 * @property {string} yLabel
 * @property {Curve[]} curves
 * @property {Mark[]} [marks]
 * @property {boolean} [logX]
 * @property {boolean} [logY]
 * @property {[number, number]} [xRange]
 * @property {[number, number]} [yRange]
 * @property {(v: number) => string} [xFormat]
 * @property {(v: number) => string} [yFormat]
 */

const WIDE = { width: 560, height: 300, left: 66, right: 14, top: 14, bottom: 44 };
const NARROW = { width: 360, height: 270, left: 60, right: 10, top: 12, bottom: 44 }; // letters stay legible on a phone

/** @param {string} name @param {Record<string, string | number>} attributes @param {(Node | string)[]} children */
export function element(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

/**
 * Draws a chart into an element, replacing what was there.
 * @param {Element} host
 * @param {Chart} chart
 */
export function draw(host, chart) {
  const frame = scales(chart, host.clientWidth > 0 && host.clientWidth < 500 ? NARROW : WIDE);
  const svg = element("svg", {
    viewBox: `0 0 ${frame.size.width} ${frame.size.height}`,
    role: "img",
    tabindex: 0,
    "aria-label": `${chart.title}. ${chart.curves.map((c) => c.name).join(", ")}.`,
    class: "chart",
  });
  svg.append(element("title", {}, chart.title), axes(chart, frame));
  const plot = element("g", { class: "plot" });
  for (const curve of chart.curves) plot.append(...curveNodes(curve, frame));
  const taken = [];
  for (const mark of chart.marks ?? []) plot.append(...markNodes(mark, frame, taken)); // their words lie above the curves
  const reading = element("g", { class: "reading", visibility: "hidden" });
  svg.append(plot, reading);
  host.replaceChildren(svg, legend(chart));
  readable(svg, reading, chart, frame);
}

// ---- scales ----------------------------------------------------------------------------------------------------

function scales(chart, given) {
  const y = axis(chart.yRange ?? extent(chart.curves.map((c) => c.y), chart.logY), chart.logY);
  const yTicks = ticks(y);
  const longest = Math.max(...yTicks.map((v) => (chart.yFormat ?? short)(v).length));
  const size = { ...given, left: Math.max(given.left, 30 + 7.5 * longest) }; // numbers and the word beside them stay apart
  const x = axis(chart.xRange ?? extent(chart.curves.map((c) => c.x), chart.logX), chart.logX);
  const [inner, tall] = [size.width - size.left - size.right, size.height - size.top - size.bottom];
  return {
    size,
    x: (v) => size.left + inner * x.place(v),
    y: (v) => size.top + tall * (1 - y.place(v)),
    xTicks: ticks(x),
    yTicks,
    xRange: [x.low, x.high],
    yRange: [y.low, y.high],
    unX: (pixel) => x.value((pixel - size.left) / inner),
  };
}

function extent(lists, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) for (const v of list) if (Number.isFinite(v) && !(log && v <= 0)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  if (!(low <= high)) return log ? [1e-3, 1] : [0, 1];
  if (low === high) return log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  if (log) return [low, high];
  const room = 0.04 * (high - low);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function axis([low, high], log = false) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const back = log ? (u) => 10 ** u : (u) => u;
  return { low, high, log, place: (v) => (f(log ? Math.max(v, 1e-300) : v) - a) / (b - a || 1), value: (u) => back(a + u * (b - a)) };
}

function ticks({ low, high, log }) {
  if (log) {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const step = Math.max(1, Math.ceil((last - first) / 5));
    const parts = last - first >= 2 ? [1] : [1, 2, 5];
    const out = [];
    for (let k = step === 1 ? first - 1 : first; k <= last; k += step) out.push(...parts.map((m) => m * 10 ** k));
    const seen = out.filter((v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9));
    return seen.length > 1 ? seen : [low, high];
  }
  const rough = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) out.push(Math.abs(v) < 1e-12 * step ? 0 : v);
  return out;
}

/** A number as short as it can be said. @param {number} v */
export function short(v) {
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size >= 1e5 || size < 1e-3) {
    const exponent = Math.floor(Math.log10(size) + 1e-12);
    const lead = v / 10 ** exponent;
    const power = `10${String(exponent).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)])}`;
    return Math.abs(Math.abs(lead) - 1) < 1e-6 ? `${lead < 0 ? "−" : ""}${power}` : `${lead.toPrecision(2)}·${power}`;
  }
  return String(Number(v.toPrecision(4))).replace("-", "−");
}

// ---- parts -----------------------------------------------------------------------------------------------------

function axes(chart, frame) {
  const { size } = frame;
  const g = element("g", { class: "axes" });
  const [bottom, right] = [size.height - size.bottom, size.width - size.right];
  const [xf, yf] = [chart.xFormat ?? short, chart.yFormat ?? short];
  for (const v of frame.yTicks) {
    const y = frame.y(v);
    g.append(element("line", { x1: size.left, x2: right, y1: y, y2: y, class: "grid" }));
    g.append(element("text", { x: size.left - 7, y: y + 4, "text-anchor": "end" }, yf(v)));
  }
  for (const v of frame.xTicks) g.append(element("text", { x: frame.x(v), y: bottom + 17, "text-anchor": "middle" }, xf(v)));
  g.append(element("line", { x1: size.left, x2: right, y1: bottom, y2: bottom, class: "base" }));
  g.append(element("text", { x: 0.5 * (size.left + right), y: size.height - 8, "text-anchor": "middle", class: "label" }, chart.xLabel));
  g.append(
    element("text", { x: 0, y: 0, transform: `translate(13 ${0.5 * (size.top + bottom)}) rotate(-90)`, "text-anchor": "middle", class: "label" }, chart.yLabel),
  );
  return g;
}

function curveNodes(curve, frame) {
  const { size } = frame;
  let path = "";
  let pen = false;
  const [low, high] = frame.yRange;
  const inside = (v) => Math.min(Math.max(v, low - 10 * (high - low)), high + 10 * (high - low));
  curve.x.forEach((x, i) => {
    const y = curve.y[i];
    if (!Number.isFinite(y)) return void (pen = false);
    path += `${pen ? "L" : "M"}${frame.x(x).toFixed(2)} ${frame.y(inside(y)).toFixed(2)}`;
    pen = true;
  });
  if (!path) return [];
  const nodes = [element("path", { d: path, class: `curve ${curve.kind}`, "clip-path": "url(#plot)" })];
  if (curve.area) {
    const base = size.height - size.bottom;
    const close = `L${frame.x(curve.x.at(-1)).toFixed(2)} ${base}L${frame.x(curve.x[0]).toFixed(2)} ${base}Z`;
    nodes.unshift(element("path", { d: path + close, class: `area ${curve.kind}` }));
  }
  return nodes;
}

/** A vertical line with its word, in the first row where no earlier word is in the way. */
function markNodes(mark, frame, taken) {
  const { size } = frame;
  const x = frame.x(mark.x);
  if (x < size.left - 1 || x > size.width - size.right + 1) return [];
  const nodes = [element("line", { x1: x, x2: x, y1: size.top, y2: size.height - size.bottom, class: `mark ${mark.kind}` })];
  if (mark.name) {
    const end = x > 0.7 * size.width;
    const long = 8 * mark.name.length + 5;
    const [from, to] = end ? [x - long, x] : [x, x + long];
    let row = 0;
    while (taken.some((word) => word.row === row && word.from < to && from < word.to)) row += 1;
    taken.push({ row, from, to });
    nodes.push(element("text", { x: x + (end ? -5 : 5), y: size.top + 11 + 17 * row, "text-anchor": end ? "end" : "start", class: "note" }, mark.name));
  }
  return nodes;
}

function legend(chart) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const curve of chart.curves) {
    const item = document.createElement("li");
    const key = element("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, element("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: `curve ${curve.kind}` }));
    const value = document.createElement("output");
    item.append(key, curve.name, value);
    list.append(item);
  }
  return list;
}

/** Values of all curves at one place: under the pointer, or moved by the arrow keys. */
function readable(svg, reading, chart, frame) {
  const { size } = frame;
  const [low, high] = frame.xRange;
  const xf = chart.xFormat ?? short;
  const outputs = svg.nextElementSibling.querySelectorAll("output");
  let place = null;
  const show = (x) => {
    place = Math.min(high, Math.max(low, x));
    const at = frame.x(place);
    const line = element("line", { x1: at, x2: at, y1: size.top, y2: size.height - size.bottom, class: "cursor" });
    const label = element("text", { x: at, y: size.height - size.bottom + 30, "text-anchor": "middle", class: "cursor" }, xf(place));
    const dots = [];
    chart.curves.forEach((curve, i) => {
      const y = interpolate(curve, place);
      outputs[i].textContent = Number.isFinite(y) ? ` ${(chart.yFormat ?? short)(y)}` : "";
      if (Number.isFinite(y)) dots.push(element("circle", { cx: at, cy: frame.y(y), r: 3.2, class: `dot ${curve.kind}` }));
    });
    reading.replaceChildren(line, label, ...dots);
    reading.setAttribute("visibility", "visible");
  };
  const hide = () => {
    place = null;
    reading.setAttribute("visibility", "hidden");
    for (const output of outputs) output.textContent = "";
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(frame.unX(((event.clientX - box.left) / box.width) * size.width));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const pixel = (place === null ? frame.x(chart.logX ? Math.sqrt(low * high) : 0.5 * (low + high)) : frame.x(place)) + 6 * step;
    show(frame.unX(pixel));
  });
}

function interpolate(curve, x) {
  const list = curve.x;
  let [a, b] = [0, list.length - 1];
  if (b < 0 || x < Math.min(list[0], list[b]) || x > Math.max(list[0], list[b])) return NaN;
  const up = list[b] >= list[0];
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (list[m] <= x === up) a = m;
    else b = m;
  }
  const t = list[b] === list[a] ? 0 : (x - list[a]) / (list[b] - list[a]);
  return curve.y[a] + t * (curve.y[b] - curve.y[a]);
}
