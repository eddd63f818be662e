// Gauss-Legendre panels against the standard normal density.
// The only quadrature rule of the page: panel edges stand where the integrand is not smooth.

const ORDER = 16; // nodes of a panel
const REACH = 11; // standard deviations: what lies beyond weighs less than 1e-27

/**
 * Nodes and weights of the Gauss-Legendre rule on [-1, 1].
 * @param {number} order
 * @returns {{nodes: Float64Array, weights: Float64Array}}
 */
export function gaussLegendre(order) {
  const nodes = new Float64Array(order);
  const weights = new Float64Array(order);
  for (let i = 0; i < order; i++) {
    let x = Math.cos((Math.PI * (i + 0.75)) / (order + 0.5));
    let slope = 1;
    for (let step = 0; step < 50; step++) {
      let [before, here] = [1, x];
      for (let k = 2; k <= order; k++) [before, here] = [here, ((2 * k - 1) * x * here - (k - 1) * before) / k];
      slope = (order * (x * here - before)) / (x * x - 1);
      const change = here / slope;
      x -= change;
      if (Math.abs(change) < 1e-16) break;
    }
    nodes[i] = x;
    weights[i] = 2 / ((1 - x * x) * slope * slope);
  }
  return { nodes, weights };
}

/** @type {Map<number, {nodes: Float64Array, weights: Float64Array}>} */
const RULES = new Map();

function rule(order) {
  if (!RULES.has(order)) RULES.set(order, gaussLegendre(order));
  return RULES.get(order);
}

/**
 * Panels on [low, high] with edges at `edges` and no panel wider than `width`: nodes and plain (Lebesgue) weights.
 * @param {number} low
 * @param {number} high
 * @param {number[]} edges
 * @param {number} width
 * @param {number} [order] nodes of a panel
 * @returns {{nodes: Float64Array, weights: Float64Array}}
 */
export function panels(low, high, edges, width, order = ORDER) {
  const panel = rule(order);
  const stops = [low, ...edges.filter((c) => c > low && c < high).sort((a, b) => a - b), high];
  const cuts = [low];
  for (let i = 1; i < stops.length; i++) {
    const span = stops[i] - stops[i - 1];
    const pieces = Math.max(1, Math.ceil(span / width));
    for (let j = 1; j <= pieces; j++) cuts.push(stops[i - 1] + (span * j) / pieces);
  }
  const nodes = new Float64Array((cuts.length - 1) * order);
  const weights = new Float64Array(nodes.length);
  for (let i = 1; i < cuts.length; i++) {
    const half = 0.5 * (cuts[i] - cuts[i - 1]);
    const middle = 0.5 * (cuts[i] + cuts[i - 1]);
    for (let j = 0; j < order; j++) {
      nodes[(i - 1) * order + j] = middle + half * panel.nodes[j];
      weights[(i - 1) * order + j] = half * panel.weights[j];
    }
  }
  return { nodes, weights };
}

/** @param {number} x @returns {number} the standard normal density */
export function normalDensity(x) {
  return Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);
}

/**
 * Nodes xi and weights of E[f(tau xi)], xi standard normal, for f with kinks at `kinks` that is smooth on `feature`.
 * @param {number} tau
 * @param {number[]} kinks
 * @param {number} feature
 * @returns {{nodes: Float64Array, weights: Float64Array}}
 */
export function normalRule(tau, kinks, feature) {
  const scale = Math.max(tau, 1e-150);
  const plain = panels(-REACH, REACH, kinks.map((c) => c / scale), Math.min(1, feature / scale));
  const weights = plain.weights.map((w, i) => w * normalDensity(plain.nodes[i]));
  return { nodes: plain.nodes, weights };
}
