// Exact kernels of infinitely wide networks at a pair of inputs: squared norms sx, sy and inner product.
// One calculus: a layer maps a covariance to E[phi(u) phi(v)] and to its slope E[phi'(u) phi'(v)]; the explicit
// recursion and the implicit fixed point are written once on top of it (docs/theory.md, section 2).

import { hermiteCoefficients, moments } from "./moments.js";
import { normalDensity, panels } from "./quadrature.js";
import { newton } from "./roots.js";

/**
 * @typedef {object} Layer what one activation does to a covariance, at variances (qx, qy)
 * @property {(lam: number) => number} value E[phi(u) phi(v)]
 * @property {(lam: number) => number} slope E[phi'(u) phi'(v)]
 *
 * @typedef {{ck: number, ntk: number, ntk_frozen: number}} Kernels
 *
 * @typedef {object} Deq
 * @property {import("./activations.js").Activation} activation
 * @property {number} sigma_a2
 * @property {number} sigma_b2
 * @property {"activation" | "pre-activation"} [readout] what the readout sees
 *
 * @typedef {object} Enn
 * @property {import("./activations.js").Activation[]} activations
 */

/** What is asked takes longer than a reader waits. */
export class TooLong extends Error {}

let deadline = Infinity;

/** Quadrature that is not done after so many milliseconds from now ends with TooLong. @param {number} milliseconds */
export function allow(milliseconds) {
  deadline = performance.now() + milliseconds;
}

/** Ends what takes longer than was allowed. */
export function inTime() {
  if (performance.now() > deadline) throw new TooLong();
}

/** A kernel of the readout from that of the activations: a pre-activation is sigma_a a.z + sigma_b b.x. @param {Deq} deq */
export function readOut(deq, value, dot) {
  return deq.readout === "pre-activation" ? deq.sigma_a2 * value + deq.sigma_b2 * dot : value;
}

const TERMS = [24, 64, 160, 320];
const ANGLES = 32;
const BENDS = Float64Array.from({ length: 96 }, (_, i) => Math.cos((Math.PI * (i + 0.5)) / 96));
const PLANE = { reach: 7.5, order: 12, width: 2 }; // mass beyond: 6e-14

/**
 * @param {import("./activations.js").Activation} phi
 * @param {number} qx
 * @param {number} qy
 * @returns {Layer}
 */
export function layer(phi, qx, qy) {
  if (phi.homogeneous) return homogeneousLayer(phi, qx, qy);
  if (phi.piecewiseLinear) return bentLayer(phi, qx, qy);
  return phi.kinks.length ? angleLayer(phi, qx, qy) : (seriesLayer(phi, qx, qy) ?? angleLayer(phi, qx, qy));
}

/** Slopes a for x > 0 and b for x < 0: the arc-cosine kernel. */
function homogeneousLayer(phi, qx, qy) {
  const [a, b] = [phi.slope(1), phi.slope(-1)];
  const size = Math.sqrt(qx * qy);
  const angle = (lam) => Math.acos(clip(lam / size));
  return {
    value: (lam) => {
      const t = angle(lam);
      const bent = Math.sin(t) + (Math.PI - t) * Math.cos(t);
      return size * (((a - b) ** 2 * bent) / (2 * Math.PI) + a * b * clip(lam / size));
    },
    slope: (lam) => {
      const same = 1 - angle(lam) / Math.PI;
      return 0.5 * (a * a + b * b) * same + a * b * (1 - same);
    },
  };
}

/** sum_k a_k(qx) a_k(qy) rho^k, where that series ends soon enough; null where it does not. */
function seriesLayer(phi, qx, qy) {
  const [sx, sy] = [Math.sqrt(qx), Math.sqrt(qy)];
  for (const terms of TERMS) {
    const x = hermiteCoefficients(phi, sx, terms);
    const y = qx === qy ? x : hermiteCoefficients(phi, sy, terms);
    const end = Math.max(tail(x.slope), tail(y.slope));
    if (end > 1e-11) continue;
    const values = x.value.map((v, k) => v * y.value[k]);
    const slopes = x.slope.map((v, k) => v * y.slope[k]);
    const rho = (lam) => clip(lam / (sx * sy));
    return { value: (lam) => horner(values, rho(lam)), slope: (lam) => horner(slopes, rho(lam)) };
  }
  return null;
}

function tail(coefficients) {
  const all = coefficients.reduce((sum, c) => sum + c * c, 0);
  const last = coefficients.slice(-6).reduce((sum, c) => sum + c * c, 0);
  return all > 0 ? last / all : 0;
}

function horner(coefficients, x) {
  let sum = 0;
  for (let k = coefficients.length - 1; k >= 0; k--) sum = sum * x + coefficients[k];
  return sum;
}

/**
 * Piecewise linear phi with slopes that jump by b_i at c_i: by Price's theorem d E[phi' phi'] / d lam is the sum of
 * b_i b_j p(c_i, c_j), p the density of (u, v), which is smooth in t = arcsin rho; two integrations give the rest.
 */
function bentLayer(phi, qx, qy) {
  const [sx, sy] = [Math.sqrt(qx), Math.sqrt(qy)];
  const jumps = phi.kinks.map((c) => phi.slope(c + 1e-9) - phi.slope(c - 1e-9));
  const steps = BENDS.map((x) => {
    const t = 0.5 * Math.PI * x;
    let sum = 0;
    phi.kinks.forEach((c, i) => phi.kinks.forEach((d, j) => (sum += jumps[i] * jumps[j] * crossing(c / sx, d / sy, t))));
    return 0.25 * sum; // (1 / 2 pi) (pi / 2), the change of variable to [-1, 1]
  });
  const [mx, my] = [moments(phi, sx), moments(phi, sy)];
  const slopes = integrated(chebyshev(steps), mx.slope * my.slope);
  const pace = BENDS.map((x) => 0.5 * Math.PI * sx * sy * Math.cos(0.5 * Math.PI * x) * clenshaw(slopes, x));
  const values = integrated(chebyshev(pace), mx.mean * my.mean);
  const place = (lam) => (2 / Math.PI) * Math.asin(clip(lam / (sx * sy)));
  return { value: (lam) => clenshaw(values, place(lam)), slope: (lam) => clenshaw(slopes, place(lam)) };
}

/** exp of minus the quadratic form of two standard normals with correlation sin t, at (a, b). */
function crossing(a, b, t) {
  const [sine, cosine2] = [Math.sin(t), Math.cos(t) ** 2];
  // (a^2 - 2 a b sin t + b^2) / (2 cos^2 t), with the part that stays finite at t = +-pi/2 apart
  const apart = sine >= 0 ? a - b : a + b;
  return Math.exp(-(apart * apart) / (2 * cosine2) - (a * b * Math.sign(sine || 1)) / (1 + Math.abs(sine)));
}

/** The antiderivative of a Chebyshev series that takes the value `middle` at 0. */
function integrated(c, middle) {
  const out = new Float64Array(c.length + 1);
  const at = (k) => c[k] ?? 0;
  for (let k = 1; k < out.length; k++) out[k] = ((k === 1 ? 2 : 1) * at(k - 1) - at(k + 1)) / (2 * k);
  out[0] = middle - clenshaw(out, 0);
  return out;
}

/** Both expectations as Chebyshev series of the angle, in which they are smooth even where phi has kinks. */
function angleLayer(phi, qx, qy) {
  const sweep = phi.kinks.every((c) => c === 0) ? polar : plane;
  const values = new Float64Array(ANGLES);
  const slopes = new Float64Array(ANGLES);
  for (let i = 0; i < ANGLES; i++) {
    const angle = 0.5 * Math.PI * (1 + Math.cos((Math.PI * (i + 0.5)) / ANGLES));
    [values[i], slopes[i]] = sweep(phi, Math.sqrt(qx), Math.sqrt(qy), angle);
  }
  const [v, s] = [chebyshev(values), chebyshev(slopes)];
  const size = Math.sqrt(qx * qy);
  const place = (lam) => (2 * Math.acos(clip(lam / size))) / Math.PI - 1;
  return { value: (lam) => clenshaw(v, place(lam)), slope: (lam) => clenshaw(s, place(lam)) };
}

/**
 * The same two expectations where all kinks lie at zero: in polar coordinates u = sx r cos t, v = sy r cos(t - angle)
 * the kinks are rays, and every sector between them is smooth.
 */
function polar(phi, sx, sy, angle) {
  const half = 0.5 * Math.PI;
  const radial = panels(0, PLANE.reach, [], Math.min(PLANE.width, (PLANE.width * phi.feature) / Math.max(sx, sy)), PLANE.order);
  const sectors = panels(-half, 3 * half, [half, angle - half, angle + half], half, PLANE.order);
  let [value, slope] = [0, 0];
  for (let j = 0; j < sectors.nodes.length; j++) {
    inTime();
    const [x, y] = [sx * Math.cos(sectors.nodes[j]), sy * Math.cos(sectors.nodes[j] - angle)];
    for (let i = 0; i < radial.nodes.length; i++) {
      const r = radial.nodes[i];
      const w = sectors.weights[j] * radial.weights[i] * r * Math.exp(-0.5 * r * r);
      value += w * phi.value(r * x) * phi.value(r * y);
      slope += w * phi.slope(r * x) * phi.slope(r * y);
    }
  }
  return [value / (2 * Math.PI), slope / (2 * Math.PI)];
}

/**
 * E[phi(u) phi(v)] and E[phi'(u) phi'(v)] by quadrature over the plane. With u = sx (c a + s b), v = sy (c a - s b) and
 * a, b independent, the kinks are lines: panels in a end on them, panels in b end where two of them cross.
 */
function plane(phi, sx, sy, angle) {
  const [c, s] = [Math.cos(0.5 * angle), Math.sin(0.5 * angle)];
  const swap = s > c; // integrate first along the direction in which the lines are steeper
  const [first, second] = swap ? [s, c] : [c, s];
  const sign = swap ? -1 : 1;
  const width = Math.min(PLANE.width, (PLANE.width * phi.feature) / Math.max(sx, sy));
  const crossings = [];
  for (const k of phi.kinks) for (const l of phi.kinks) crossings.push((k / sx - (sign * l) / sy) / (2 * second));
  const outer = panels(-PLANE.reach, PLANE.reach, crossings, width, PLANE.order);
  let [value, slope] = [0, 0];
  for (let i = 0; i < outer.nodes.length; i++) {
    inTime();
    const b = outer.nodes[i];
    const edges = [];
    for (const k of phi.kinks) edges.push((k / sx - second * b) / first, (sign * k) / sy / first + (second * b) / first);
    const inner = panels(-PLANE.reach, PLANE.reach, edges, width, PLANE.order);
    const weight = outer.weights[i] * normalDensity(b);
    for (let j = 0; j < inner.nodes.length; j++) {
      const a = inner.nodes[j];
      const w = weight * inner.weights[j] * normalDensity(a);
      const u = sx * (first * a + second * b);
      const v = sign * sy * (first * a - second * b);
      value += w * phi.value(u) * phi.value(v);
      slope += w * phi.slope(u) * phi.slope(v);
    }
  }
  return [value, slope];
}

function chebyshev(samples) {
  const n = samples.length;
  return samples.map((_, k) => {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += samples[i] * Math.cos((Math.PI * k * (i + 0.5)) / n);
    return ((k === 0 ? 1 : 2) * sum) / n;
  });
}

function clenshaw(c, x) {
  let [b1, b2] = [0, 0];
  for (let k = c.length - 1; k > 0; k--) [b1, b2] = [2 * x * b1 - b2 + c[k], b1];
  return x * b1 - b2 + c[0];
}

const clip = (x) => Math.min(1, Math.max(-1, x));

// ---- networks --------------------------------------------------------------------------------------------------

/**
 * q = s2a E[phi(sqrt(q) xi)^2] + s2b s: the variance of the pre-activations of an input of squared norm s.
 * @param {Deq} deq
 * @param {number} s
 */
export function equilibriumVariance(deq, s) {
  const drive = deq.sigma_b2 * s;
  if (deq.activation.homogeneous) return drive / (1 - deq.sigma_a2 * moments(deq.activation, 1).square);
  const rest = (q) => {
    const m = moments(deq.activation, Math.sqrt(q));
    return [q - deq.sigma_a2 * m.square - drive, Math.max(0.05, 1 - 0.5 * deq.sigma_a2 * m.squareCurvature)];
  };
  const start = drive + deq.sigma_a2 * moments(deq.activation, Math.sqrt(drive)).square;
  return newton(rest, drive, Infinity, start);
}

/**
 * The kernels of a DEQ as a function of the inner product, for squared norms sx and sy.
 * @param {Deq} deq
 * @param {number} sx
 * @param {number} sy
 * @returns {(dot: number) => Kernels}
 */
export function implicitKernel(deq, sx, sy) {
  const qx = equilibriumVariance(deq, sx);
  const qy = sx === sy ? qx : equilibriumVariance(deq, sy);
  const map = layer(deq.activation, qx, qy);
  const bound = Math.sqrt(qx * qy);
  return (dot) => {
    const drive = deq.sigma_b2 * dot;
    const rest = (lam) => [lam - deq.sigma_a2 * map.value(lam) - drive, Math.max(1e-3, 1 - deq.sigma_a2 * map.slope(lam))];
    const lam = sx === sy && dot === sx ? qx : newton(rest, -bound, bound, Math.min(bound, Math.max(-bound, drive)));
    const [value, slope] = [map.value(lam), map.slope(lam)];
    const gap = 1 - deq.sigma_a2 * slope;
    const read = (v) => readOut(deq, v, dot);
    return { ck: read(value), ntk: read(value + (lam * slope) / gap), ntk_frozen: read(value / gap) };
  };
}

/**
 * The kernels of an explicit network as a function of the inner product: Sigma_l = E[sigma_l sigma_l],
 * Theta_l = Sigma_l + Theta_(l-1) E[sigma_l' sigma_l'].
 * @param {Enn} enn
 * @param {number} sx
 * @param {number} sy
 * @returns {(dot: number) => Kernels}
 */
export function explicitKernel(enn, sx, sy) {
  let [qx, qy] = [sx, sy];
  const maps = enn.activations.map((phi) => {
    const map = layer(phi, qx, qy);
    qy = sx === sy ? moments(phi, Math.sqrt(qx)).square : moments(phi, Math.sqrt(qy)).square;
    qx = sx === sy ? qy : moments(phi, Math.sqrt(qx)).square;
    return map;
  });
  return (dot) => {
    let [sigma, ntk, frozen] = [dot, dot, 0];
    for (const map of maps) {
      const slope = map.slope(sigma);
      sigma = map.value(sigma);
      [ntk, frozen] = [sigma + ntk * slope, sigma + frozen * slope];
    }
    return { ck: sigma, ntk, ntk_frozen: frozen };
  };
}
