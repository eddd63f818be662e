// One layer is enough (docs/theory.md, section 13): every kernel is sum_k g_k(s, s') rho^k in the norms s, s' and the
// cosine rho, and a layer of J kinds of units that see the norm has the same kernel up to what J norms leave of each g_k.

import { add, exp, inv, mul, real, scale, sub } from "./complex.js";
import { equilibriumVariance, inTime, readOut } from "./kernels.js";
import { hermiteCoefficients, moments } from "./moments.js";

const TERMS = 80;
const POINTS = 200; // on the circle: what is mixed into an order lies 200 orders above it
const NODES = 9;
const NOISE = 1e-13; // of the largest kernel: what rounding leaves in a Fourier coefficient

/**
 * @typedef {object} OneLayer
 * @property {number[]} norms where the deficit is shown
 * @property {number[][]} deficits for J = 1 ... 4 kinds: (k(s, s, 1) - k_twin(s, s, 1)) / k(s, s, 1)
 * @property {number[]} pivots the J norms of the last entry that was asked for
 * @property {(u: number) => number[]} units psi_j(u; s) at the middle norm
 * @property {(s: number, t: number) => (cosine: number) => number} kernel of the layer with J kinds, at two norms
 */

/**
 * The one-layer twin of a DEQ as it is given, on norms low ... high; null where the activation has kinks, for which
 * units are elementary functions that the Python package designs.
 * @param {import("./kernels.js").Deq} deq
 * @param {"ck" | "ntk" | "ntk_frozen"} kernel
 * @param {number} low
 * @param {number} high
 * @param {number} kinds
 * @returns {OneLayer | null}
 */
export function oneLayer(deq, kernel, low, high, kinds) {
  if (deq.activation.kinks.length) return null;
  const side = sides(deq);
  const norms = Array.from({ length: NODES }, (_, i) => low + ((high - low) * i) / (NODES - 1));
  const pivots = (count) => Array.from({ length: count }, (_, j) => 0.5 * (low + high) + 0.5 * (high - low) * Math.cos((Math.PI * (j + 0.5)) / count));
  const between = remembered((s, t) => orders(deq, kernel, side(s), side(t)));
  const whole = (s) => ownKernel(deq, kernel, side(s));
  const deficits = [1, 2, 3, 4].map((count) => {
    const project = projection(pivots(count), between, whole);
    return norms.map((s) => project(s).deficit);
  });
  const middle = 0.5 * (low + high);
  const own = pivots(kinds);
  const project = projection(own, between, whole);
  const twin = (s, t) => {
    const [x, y] = [project(s).factors, project(t).factors];
    const orders = x.map((c, k) => c.reduce((sum, v, j) => sum + v * y[k][j], 0));
    return (cosine) => horner(orders, [cosine, 0])[0];
  };
  return { norms, deficits, pivots: own, units: unitsAt(project(middle).factors, side(middle)), kernel: twin };
}

/** A symmetric function of two numbers, computed once per pair. */
function remembered(f) {
  const known = new Map();
  return (s, t) => {
    const key = s < t ? `${s} ${t}` : `${t} ${s}`;
    if (!known.has(key)) known.set(key, f(s, t));
    return known.get(key);
  };
}

/** Per norm: s, its variance q and the Hermite coefficients of phi and phi' there, computed once. */
function sides(deq) {
  const known = new Map();
  return (s) => {
    if (!known.has(s)) {
      const q = equilibriumVariance(deq, s * s);
      known.set(s, { s, q, ...hermiteCoefficients(deq.activation, Math.sqrt(q), TERMS) });
    }
    return known.get(s);
  };
}

/** g_0 ... g_(TERMS-1) between two norms: the kernel on the unit circle of complex cosines, and its Fourier coefficients. */
function orders(deq, kernel, x, y) {
  const count = POINTS;
  const values = x.value.map((v, k) => v * y.value[k]);
  const slopes = x.slope.map((v, k) => v * y.slope[k]);
  const root = Math.sqrt(x.q * y.q);
  const samples = [];
  const turns = cosines(count);
  let lam = [0, 0];
  for (let i = 0; i <= count / 2; i++) {
    inTime();
    const z = exp([0, (2 * Math.PI * i) / count]);
    lam = i === 0 ? real(covariance(deq, values, slopes, root, x.s * y.s, x.s === y.s ? root : null)) : onCircle(deq, values, slopes, root, scale(z, x.s * y.s), lam);
    const [value, product] = [closed(deq, kernel, values, slopes, root, lam), scale(z, x.s * y.s)];
    samples.push([0, 1].map((part) => readOut(deq, value[part], product[part])));
  }
  return Float64Array.from({ length: TERMS }, (_, k) => {
    let sum = samples[0][0] + (k % 2 ? -1 : 1) * samples[count / 2][0];
    for (let i = 1; i < count / 2; i++) {
      const at = (i * k) % count;
      sum += 2 * (samples[i][0] * turns.cosine[at] + samples[i][1] * turns.sine[at]);
    }
    return Math.max(0, sum / count);
  });
}

let table = null;

/** cos and sin of the angles of the circle, once. */
function cosines(count) {
  table ??= {
    cosine: Float64Array.from({ length: count }, (_, i) => Math.cos((2 * Math.PI * i) / count)),
    sine: Float64Array.from({ length: count }, (_, i) => Math.sin((2 * Math.PI * i) / count)),
  };
  return table;
}

function horner(coefficients, z) {
  let [re, im] = [0, 0];
  for (let k = coefficients.length - 1; k >= 0; k--) [re, im] = [re * z[0] - im * z[1] + coefficients[k], re * z[1] + im * z[0]];
  return [re, im];
}

/** lam = s2a F(lam) + s2b s s' at cosine one; on the diagonal lam is the variance itself. */
function covariance(deq, values, slopes, root, product, known) {
  return known ?? onCircle(deq, values, slopes, root, real(product), real(deq.sigma_b2 * product))[0];
}

/** The same equation for a complex inner product, by Newton from a point nearby; in plain numbers, for speed. */
function onCircle(deq, values, slopes, root, product, start) {
  const [driveRe, driveIm] = scale(product, deq.sigma_b2);
  let [re, im] = start;
  for (let step = 0; step < 40; step++) {
    const [x, y] = [re / root, im / root];
    let [fr, fi, dr, di] = [0, 0, 0, 0];
    for (let k = values.length - 1; k >= 0; k--) {
      const f = fr * x - fi * y + values[k];
      fi = fr * y + fi * x;
      fr = f;
      const d = dr * x - di * y + slopes[k];
      di = dr * y + di * x;
      dr = d;
    }
    const [restRe, restIm] = [re - deq.sigma_a2 * fr - driveRe, im - deq.sigma_a2 * fi - driveIm];
    const [gapRe, gapIm] = [1 - deq.sigma_a2 * dr, -deq.sigma_a2 * di];
    const square = gapRe * gapRe + gapIm * gapIm;
    const [moveRe, moveIm] = [(restRe * gapRe + restIm * gapIm) / square, (restIm * gapRe - restRe * gapIm) / square];
    re -= moveRe;
    im -= moveIm;
    if (Math.abs(moveRe) + Math.abs(moveIm) <= 1e-14 * root) break;
  }
  return [re, im];
}

function closed(deq, kernel, values, slopes, root, lam) {
  const rho = scale(lam, 1 / root);
  const value = horner(values, rho);
  if (kernel === "ck") return value;
  const slope = horner(slopes, rho);
  const gap = inv(sub(real(1), scale(slope, deq.sigma_a2)));
  return kernel === "ntk" ? add(value, mul(mul(lam, slope), gap)) : mul(value, gap);
}

/** k(s, s, 1) with all orders, from the moments. */
function ownKernel(deq, kernel, { q, s }) {
  const { square, slopeSquare } = moments(deq.activation, Math.sqrt(q));
  const gap = 1 - deq.sigma_a2 * slopeSquare;
  return readOut(deq, { ck: square, ntk: square + (q * slopeSquare) / gap, ntk_frozen: square / gap }[kernel], s * s);
}

/**
 * The Nystrom form g_k(s, S) g_k(S, S)^(-1) g_k(S, s') for every order: for a norm s the coefficients c_k^j(s), with
 * c_k = L_k^(-1) g_k(S, s) and L_k L_k' = g_k(S, S), and what is left of the diagonal.
 */
function projection(pivots, between, whole) {
  const grams = pivots.map((s, i) => pivots.map((t, j) => (j <= i ? between(s, t) : null)));
  const noise = NOISE * Math.max(...pivots.map(whole));
  const lower = Array.from({ length: TERMS }, (_, k) => cholesky(grams.map((row, i) => row.map((g, j) => (g ?? grams[j][i])[k])), noise));
  return (s) => {
    const total = whole(s);
    const sides = pivots.map((t) => between(s, t));
    const factors = lower.map((l, k) => forward(l, sides.map((g) => g[k])));
    const kept = factors.reduce((sum, c) => sum + c.reduce((t, v) => t + v * v, 0), 0);
    return { deficit: Math.max(0, total - kept) / total, factors };
  };
}

/** A pivot at the level `noise` of the Fourier transform is left out: its column is zero. */
function cholesky(a, noise) {
  const out = a.map((row) => row.map(() => 0));
  for (let j = 0; j < a.length; j++) {
    const left = a[j][j] - out[j].reduce((sum, v, k) => (k < j ? sum + v * v : sum), 0);
    if (left <= noise) continue;
    out[j][j] = Math.sqrt(left);
    for (let i = j + 1; i < a.length; i++) out[i][j] = (a[i][j] - out[i].reduce((sum, v, k) => (k < j ? sum + v * out[j][k] : sum), 0)) / out[j][j];
  }
  return out;
}

function forward(l, b) {
  const x = b.map(() => 0);
  for (let i = 0; i < b.length; i++) {
    if (l[i][i] === 0) continue;
    x[i] = (b[i] - l[i].reduce((sum, v, k) => (k < i ? sum + v * x[k] : sum), 0)) / l[i][i];
  }
  return x;
}

/** psi_j(u; s) = sum_k c_k^j(s) h_k(u), with the signs of phi's own coefficients so that the units look like phi. */
function unitsAt(factors, side) {
  const signs = side.value.map((a) => (a < 0 ? -1 : 1));
  const kinds = factors[0].length;
  return (u) => {
    const sums = new Array(kinds).fill(0);
    let [before, here] = [0, 1];
    for (let k = 0; k < TERMS; k++) {
      for (let j = 0; j < kinds; j++) sums[j] += signs[k] * factors[k][j] * here;
      [before, here] = [here, (u * here - Math.sqrt(k) * before) / Math.sqrt(k + 1)];
    }
    return sums;
  };
}
