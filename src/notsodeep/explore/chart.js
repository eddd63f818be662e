// Charts as SVG: axes, curves, bars and marks with their names, and a reading under the pointer or the arrow keys.
// Every number comes from Python; here it is placed on an axis and printed.

const WIDE = { width: 560, height: 300, left: 60, right: 16, top: 14, bottom: 44 };
const NARROW = { width: 360, height: 270, left: 54, right: 12, top: 12, bottom: 44 }; // letters stay legible on a phone

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

function html(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

/** Draws a chart into an element that is on the page, since its width decides the layout. */
function drawChart(host, chart) {
  const frame = frameOf(chart, host.clientWidth < 460 ? NARROW : WIDE);
  const words = [...chart.curves, ...(chart.bars ? [chart.bars] : [])].map((c) => c.name).join(", ");
  const { width, height } = frame.size;
  const label = `${chart.title}: ${words}. Arrow keys read the values.`;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": label, class: "chart" });
  root.append(axes(chart, frame), ...bars(chart, frame));
  for (const curve of chart.curves) root.append(...curveNodes(chart.x, curve, frame));
  for (const level of chart.levels ?? []) root.append(...levelNodes(level, frame));
  const taken = [];
  for (const mark of chart.marks ?? []) root.append(...markNodes(mark, frame, taken)); // their words lie above the curves
  for (const x of chart.dots?.x ?? []) root.append(svg("circle", { cx: frame.x(x), cy: frame.bottom, r: 3.5, class: `dot ${chart.dots.role}` }));
  const reading = svg("g", { visibility: "hidden" });
  root.append(reading);
  host.replaceChildren(html("h3", {}, chart.title), root, legend(chart));
  makeReadable(root, reading, chart, frame);
}

// ---- axes ------------------------------------------------------------------------------------------------------

function frameOf(chart, given) {
  const levels = (chart.levels ?? []).map((level) => level.y);
  const y = axis(chart.yRange ?? extent([...chart.curves.map((c) => c.y), levels], chart.yLog), chart.yLog, chart.yUnit);
  const longest = Math.max(...y.ticks.map((v) => y.print(v).length));
  const size = { ...given, left: Math.max(given.left, 34 + 7.2 * longest) }; // numbers and the word beside them stay apart
  const x = axis(chart.xRange ?? extent([chart.x], chart.xLog), chart.xLog, chart.xUnit);
  const [inner, tall] = [size.width - size.left - size.right, size.height - size.top - size.bottom];
  return {
    size, xAxis: x, yAxis: y, bottom: size.height - size.bottom, edge: size.width - size.right,
    x: (v) => size.left + inner * x.place(v),
    y: (v) => size.top + tall * (1 - Math.min(Math.max(y.place(v), -0.02), 1.02)),
    valueAt: (pixel) => x.value((pixel - size.left) / inner),
  };
}

function extent(lists, log) {
  const seen = lists.flat().filter((v) => v !== null && !(log && v <= 0));
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  if (!seen.length) return log ? [0.1, 1] : [0, 1];
  if (low === high) return log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  if (log) return [low / 1.2, high * 1.2];
  const border = 0.04 * (high - low);
  return [low >= 0 && low < border ? 0 : low - border, high + border];
}

function axis([low, high], log = false, unit = "") {
  const [scale, back] = log ? [Math.log10, (u) => 10 ** u] : [(v) => v, (u) => u];
  const [a, b] = [scale(low), scale(high)];
  return {
    low, high, ticks: log ? logTicks(low, high) : ticks(low, high), print: (v) => short(v) + unit,
    place: (v) => (scale(log ? Math.max(v, 1e-300) : v) - a) / (b - a), value: (u) => back(a + u * (b - a)),
  };
}

function ticks(low, high) {
  const rough = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= 0.999 * rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const leads = last - first > 3 ? [1] : [1, 2, 5];
  const step = Math.max(1, Math.ceil((last - first) / 6));
  const all = [];
  for (let k = first; k <= last; k += step) all.push(...leads.map((m) => m * 10 ** k));
  const seen = all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  return seen.length > 1 ? seen : [low, high];
}

/** A number as short as it can be said. */
function short(v) {
  if (Math.abs(v) < 1e-300) return "0";
  const size = Math.abs(v);
  if (size < 1e5 && size >= 1e-3) return String(Number(v.toPrecision(3))).replace("-", "−");
  const [lead, power] = v.toExponential(1).split("e");
  const raised = String(Number(power)).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)]);
  return (Number(lead) === 1 ? `10${raised}` : `${Number(lead)}·10${raised}`).replace("-", "−");
}

function axes(chart, frame) {
  const { size, bottom, edge } = frame;
  const g = svg("g", { class: "axes" });
  for (const v of frame.yAxis.ticks) {
    const y = frame.y(v);
    g.append(svg("line", { x1: size.left, x2: edge, y1: y, y2: y, class: "grid" }));
    g.append(svg("text", { x: size.left - 7, y: y + 4, "text-anchor": "end" }, frame.yAxis.print(v)));
  }
  let free = -Infinity; // words that would touch the one before are left out
  for (const v of frame.xAxis.ticks) {
    const [x, word] = [frame.x(v), frame.xAxis.print(v)];
    if (x - 3.6 * word.length < free) continue;
    free = x + 3.6 * word.length + 6;
    g.append(svg("text", { x, y: bottom + 17, "text-anchor": "middle" }, word));
  }
  g.append(svg("line", { x1: size.left, x2: edge, y1: bottom, y2: bottom, class: "base" }));
  g.append(svg("text", { x: (size.left + edge) / 2, y: size.height - 8, "text-anchor": "middle", class: "label" }, chart.xLabel));
  const turn = `translate(13 ${(size.top + bottom) / 2}) rotate(-90)`;
  g.append(svg("text", { transform: turn, "text-anchor": "middle", class: "label" }, chart.yLabel));
  return g;
}

// ---- what is drawn ---------------------------------------------------------------------------------------------

function curveNodes(places, curve, frame) {
  const nodes = [];
  let path = "";
  places.forEach((x, i) => {
    if (curve.y[i] === null) return;
    const pen = i > 0 && curve.y[i - 1] !== null ? "L" : "M";
    path += `${pen}${frame.x(x).toFixed(1)} ${frame.y(curve.y[i]).toFixed(1)}`;
    if (curve.dots) nodes.push(svg("circle", { cx: frame.x(x), cy: frame.y(curve.y[i]), r: 3.2, class: `dot ${curve.role}` }));
  });
  if (curve.area) {
    const below = path.split(/(?=M)/).map((part) => {
      const [from, to] = [part.match(/M([\d.-]+)/)[1], part.match(/([\d.-]+) [\d.-]+$/)[1]];
      return `${part}L${to} ${frame.bottom}L${from} ${frame.bottom}Z`;
    });
    nodes.push(svg("path", { d: below.join(""), class: `area ${curve.role}` }));
  }
  return [...nodes, svg("path", { d: path, class: `curve ${curve.role}` })];
}

function bars({ bars }, frame) {
  return (bars?.heights ?? []).map((height, i) => {
    const [x, y] = [frame.x(bars.edges[i]), frame.y(height)];
    return svg("rect", { x, y, width: Math.max(0.5, frame.x(bars.edges[i + 1]) - x - 0.6), height: Math.max(0, frame.bottom - y), class: `bar ${bars.role}` });
  });
}

function levelNodes(level, frame) {
  const y = frame.y(level.y);
  const line = svg("line", { x1: frame.size.left, x2: frame.edge, y1: y, y2: y, class: `level ${level.role}` });
  return [line, svg("text", { x: frame.size.left + 6, y: y - 5, class: "note" }, level.name)];
}

/** A vertical line with its word, in the first row where no earlier word is in the way. */
function markNodes(mark, frame, taken) {
  const { size } = frame;
  const x = frame.x(mark.x);
  if (x < size.left - 1 || x > frame.edge + 1) return [];
  const end = x > 0.7 * size.width;
  const long = 7.5 * mark.name.length + 8;
  const [from, to] = end ? [x - long, x] : [x, x + long];
  let row = 0;
  while (taken.some((word) => word.row === row && word.from < to && from < word.to)) row += 1;
  taken.push({ row, from, to });
  const line = svg("line", { x1: x, x2: x, y1: size.top, y2: frame.bottom, class: `mark ${mark.role}` });
  const place = { x: x + (end ? -5 : 5), y: size.top + 11 + 17 * row, "text-anchor": end ? "end" : "start", class: "note" };
  return [line, svg("text", place, mark.name)];
}

function legend(chart) {
  const sample = (shape) => svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, shape);
  const items = chart.curves.map((curve) => {
    const line = svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: `curve ${curve.role}` });
    return html("li", {}, sample(line), curve.name, html("output"));
  });
  if (chart.bars) items.push(html("li", {}, sample(svg("rect", { x: 5, y: 0, width: 16, height: 10, class: `bar ${chart.bars.role}` })), chart.bars.name));
  if (chart.dots?.x.length) items.push(html("li", {}, sample(svg("circle", { cx: 13, cy: 5, r: 4, class: `dot ${chart.dots.role}` })), chart.dots.name));
  return html("ul", { class: "legend" }, ...items);
}

// ---- reading ---------------------------------------------------------------------------------------------------

/** Shows the values of all curves at one place: under the pointer, or moved by the arrow keys. */
function makeReadable(root, reading, chart, frame) {
  const outputs = root.nextElementSibling.querySelectorAll("output");
  let place = null;
  const show = (pixel) => {
    place = Math.min(frame.edge, Math.max(frame.size.left, pixel));
    const value = frame.valueAt(place);
    const line = svg("line", { x1: place, x2: place, y1: frame.size.top, y2: frame.bottom, class: "cursor" });
    const label = svg("text", { x: place, y: frame.bottom + 30, "text-anchor": "middle", class: "cursor" }, frame.xAxis.print(value));
    const nearest = chart.curves.map((curve) => nearestPoint(chart.x, curve, value));
    const dots = nearest.filter((p) => p).map((p) => svg("circle", { cx: frame.x(p.x), cy: frame.y(p.y), r: 3.2, class: `dot ${p.role}` }));
    nearest.forEach((p, i) => (outputs[i].textContent = p ? ` ${frame.yAxis.print(p.y)}` : ""));
    reading.replaceChildren(line, label, ...dots);
    reading.setAttribute("visibility", "visible");
  };
  const hide = () => {
    place = null;
    reading.setAttribute("visibility", "hidden");
    for (const output of outputs) output.textContent = "";
  };
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * frame.size.width);
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((place ?? (frame.size.left + frame.edge) / 2) + step);
  });
}

/** The computed point of a curve that is nearest to a place; nothing is interpolated. */
function nearestPoint(x, { y, role }, value) {
  let best = null;
  x.forEach((v, i) => {
    if (y[i] !== null && (best === null || Math.abs(v - value) < Math.abs(best.x - value))) best = { x: v, y: y[i], role };
  });
  return best;
}
