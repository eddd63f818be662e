// Density of eigenvalues and isolated eigenvalues of a kernel matrix on a mixture of K classes with covariances
// v_a I and orthogonal means (docs/theory.md, section 8). Everything is a function of one number d = tr Q / p.

import { bracketed, polynomialRoots, symmetricEigenvalues } from "./roots.js";

/**
 * @typedef {object} Mixture
 * @property {number} p dimension
 * @property {number[]} counts points of each class
 * @property {number[]} variances v_a of the covariances v_a I
 * @property {number} mean norm of every class mean; means of different classes are orthogonal
 *
 * @typedef {object} Law
 * @property {[number, number][]} support intervals of the bulk
 * @property {(x: number) => number} density
 * @property {{value: number, mass: number} | null} atom
 * @property {{value: number, multiplicity: number}[]} spikes
 */

/** tau0^2 = E||x||^2, class means included. @param {Mixture} mixture */
export function squaredScale(mixture) {
  const n = total(mixture.counts);
  const traces = mixture.counts.reduce((sum, c, a) => sum + (c / n) * mixture.variances[a], 0);
  return traces + mixture.mean ** 2 / mixture.p;
}

/**
 * @param {import("./coefficients.js").Coefficients} four
 * @param {Mixture} mixture
 * @param {number} tau02 squared scale of the data
 * @returns {Law}
 */
export function spectralLaw(four, mixture, tau02) {
  const n = total(mixture.counts);
  const noise = noiseLaw(mixture.counts.map((c) => c / mixture.p), mixture.variances);
  const [scale, shift] = [four.c1, four.diagonal - tau02 * four.c1];
  const zero = Math.max(0, 1 - mixture.p / n);
  return {
    support: noise.support.map(([low, high]) => [shift + scale * low, shift + scale * high]),
    density: (x) => noise.density((x - shift) / scale) / scale,
    atom: zero > 0 ? { value: shift, mass: zero } : null,
    spikes: isolated(four, mixture, noise).map((s) => ({ ...s, value: shift + scale * s.value })),
  };
}

const total = (counts) => counts.reduce((a, b) => a + b, 0);

// ---- the bulk --------------------------------------------------------------------------------------------------

/**
 * z = sum_b c_b v_b/(1 + v_b d) - 1/d links a point z of the complex plane with d; the law lives where d is not real.
 * @param {number[]} ratios c_b = n_b/p
 * @param {number[]} variances v_b
 */
function noiseLaw(ratios, variances) {
  const groups = merged(ratios, variances);
  const place = (d) => groups.reduce((sum, { c, v }) => sum + (c * v) / (1 + v * d), 0) - 1 / d;
  const share = total(ratios);
  const density = (x) => {
    const root = rootsAt(groups, x).reduce((best, r) => (r.im > best.im ? r : best), { re: 0, im: 0 });
    // the Stieltjes transform of the n x n Gram matrix is (d - (1 - n/p)(-1/z)) / (n/p) up to its atom at zero
    return x > 0 && root.im > 1e-9 * Math.hypot(root.re, root.im) ? root.im / (Math.PI * share) : 0;
  };
  const edges = criticalPoints(groups).map((d) => ({ d, z: place(d) })).filter(({ z }) => z > 1e-12);
  edges.sort((a, b) => a.z - b.z);
  const support = [];
  for (let i = 0; i + 1 < edges.length; i++) {
    const [low, high] = [edges[i].z, edges[i + 1].z];
    if (density(0.5 * (low + high)) > 0) support.push([low, high]);
  }
  return { groups, place, density, rank: share <= 1, support: support.length ? support : [[0, edges.at(-1)?.z ?? 0]], edges };
}

function merged(ratios, variances) {
  const groups = [];
  variances.forEach((v, a) => {
    const twin = groups.find((g) => Math.abs(g.v - v) <= 1e-12 * v);
    if (twin) twin.c += ratios[a];
    else groups.push({ c: ratios[a], v });
  });
  return groups;
}

const multiply = (a, b) => {
  const out = new Array(a.length + b.length - 1).fill(0);
  a.forEach((x, i) => b.forEach((y, j) => (out[i + j] += x * y)));
  return out;
};

/** All d with z(d) = x: the polynomial x d prod - d sum c_b v_b prod_(not b) + prod = 0, prod = prod (1 + v_b d). */
function rootsAt(groups, x) {
  const all = groups.reduce((poly, { v }) => multiply(poly, [1, v]), [1]);
  const out = [...all, 0];
  all.forEach((c, i) => (out[i + 1] += x * c));
  groups.forEach(({ c, v }, b) => {
    const rest = groups.reduce((poly, g, a) => (a === b ? poly : multiply(poly, [1, g.v])), [1]);
    rest.forEach((r, i) => (out[i + 1] -= c * v * r));
  });
  while (out.length > 1 && out.at(-1) === 0) out.pop();
  return polynomialRoots(out);
}

/** Real d where z'(d) = 0: prod^2 = sum c_b v_b^2 d^2 prod_(not b)^2. */
function criticalPoints(groups) {
  const square = (v) => multiply([1, v], [1, v]);
  const out = groups.reduce((poly, { v }) => multiply(poly, square(v)), [1]);
  groups.forEach(({ c, v }, b) => {
    const rest = groups.reduce((poly, g, a) => (a === b ? poly : multiply(poly, square(g.v))), [1]);
    rest.forEach((r, i) => (out[i + 2] -= c * v * v * r));
  });
  while (Math.abs(out.at(-1)) < 1e-14 * Math.max(...out.map(Math.abs))) out.pop();
  const real = polynomialRoots(out).filter((r) => Math.abs(r.im) < 1e-7 * (1 + Math.abs(r.re)));
  const slope = (d) => 1 - groups.reduce((sum, { c, v }) => sum + c * ((v * d) / (1 + v * d)) ** 2, 0);
  return real.map(({ re }) => polished(slope, re));
}

/** A simple zero known to a few digits, to all of them. */
function polished(f, x) {
  const step = 1e-6 * Math.max(Math.abs(x), 1e-6);
  return f(x - step) * f(x + step) < 0 ? bracketed(f, x - step, x + step) : x;
}

// ---- isolated eigenvalues --------------------------------------------------------------------------------------

/** Zeros of det N(z') outside the bulk; every eigenvalue of N increases with z', so counting negative ones finds all. */
function isolated(four, mixture, noise) {
  const lowRank = lowRankPart(four, mixture);
  const top = noise.edges.at(-1);
  const found = rightOf(lowRank, noise, top);
  for (const [low, high] of gaps(noise)) found.push(...inGap(lowRank, noise, low, high));
  return found.sort((a, b) => a.value - b.value);
}

function lowRankPart(four, mixture) {
  const { p, counts, variances, mean } = mixture;
  const n = total(counts);
  const average = counts.reduce((sum, c, a) => sum + (c / n) * variances[a], 0);
  const t = variances.map((v) => Math.sqrt(p) * (v - average));
  const ratios = counts.map((c) => c / p);
  const kappa = four.c2 / four.c1;
  const size = counts.length;
  /** N at d (which fixes z'), docs/theory.md section 8 with B inverted. */
  return (d, z) => {
    const side = kappa > 1e-14 ? 1 : 0;
    const out = Array.from({ length: 2 * size + side }, () => new Array(2 * size + side).fill(0));
    let corner = 0;
    for (let a = 0; a < size; a++) {
      const g = -1 / (z * (1 + variances[a] * d));
      out[a][a] = ratios[a] * g;
      out[a][size + a] = out[size + a][a] = 1;
      // M'RM = M'(-z' Qt)M here: what the means keep of themselves
      for (let b = 0; b < size; b++) out[size + a][size + b] = -(four.c3 / four.c1) * variances[a] * variances[b];
      out[size + a][size + a] += mean * mean * z * d;
      corner += ratios[a] * g * 2 * variances[a] ** 2;
      if (side) out[size + a][2 * size] = out[2 * size][size + a] = -t[a];
    }
    if (side) out[2 * size][2 * size] = 1 / kappa + corner;
    return out;
  };
}

const negative = (matrix) => symmetricEigenvalues(matrix).filter((v) => v < 0).length;

/** To the right of the bulk d runs from its edge up to zero from below, and z' from the edge to infinity. */
function rightOf(lowRank, noise, edge) {
  const count = (d) => negative(lowRank(d, noise.place(d)));
  return crossings(lowRank, noise, edge.d * (1 - 1e-9), edge.d * 1e-7, count);
}

function gaps(noise) {
  const out = [];
  for (let i = 0; i + 1 < noise.support.length; i++) {
    const ends = noise.edges.filter(({ z }) => z >= noise.support[i][1] - 1e-12 && z <= noise.support[i + 1][0] + 1e-12);
    if (ends.length === 2) out.push([ends[0].d, ends[1].d]);
  }
  const first = noise.edges[0];
  if (!first || noise.support[0][0] <= 1e-12 || first.d <= 0) return out;
  if (first.z <= 0 || noise.rank) return [...out, [first.d * 1e-7, first.d]];
  const zero = bracketed(noise.place, first.d * 1e-7, first.d); // the atom at zero splits what lies below the bulk
  return [...out, [first.d * 1e-7, zero], [zero, first.d]];
}

function inGap(lowRank, noise, from, to) {
  const count = (d) => negative(lowRank(d, noise.place(d)));
  const inset = 1e-9 * (to - from);
  return crossings(lowRank, noise, from + inset, to - inset, count);
}

/** Eigenvalues of N that change sign between d = low and d = high, each by its own branch. */
function crossings(lowRank, noise, low, high, count) {
  const [first, last] = [count(low), count(high)];
  const found = [];
  for (let k = Math.min(first, last); k < Math.max(first, last); k++) {
    const branch = (d) => symmetricEigenvalues(lowRank(d, noise.place(d)))[k];
    const value = noise.place(bracketed(branch, low, high));
    const twin = found.find((s) => Math.abs(s.value - value) < 1e-8 * Math.abs(value));
    if (twin) twin.multiplicity += 1;
    else found.push({ value, multiplicity: 1 });
  }
  return found;
}
