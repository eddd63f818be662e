// Kernel regression on a mixture, predicted before any training (docs/theory.md, section 15).
// In high dimension the kernel is the Gram matrix of a Gaussian mixture with p + 1 + K features plus a ridge. With
// S_a = Sigma_a + m_a m_a', g_a = 1/(d_a + delta_a) and Q = (I + sum_a (n_a/p) g_a S_a)^(-1) the fixed point is
// delta_a = tr(S_a Q)/p, and mean and covariance of a new point's scores follow from Q.

import { normalCdf } from "./activations.js";
import { add, conj, exp, identity, inv, matrix, mul, product, real, scale, size, solve, sub, traceOf, transposed } from "./complex.js";

/**
 * @typedef {object} Problem
 * @property {number} p
 * @property {number[]} counts
 * @property {number[][]} values eigenvalues of Sigma_a, one row per group of directions: noise, norms, classes
 * @property {number[]} weights share of each group among the p directions
 * @property {number[][][]} grams m' m within each group, K x K
 * @property {number} offset what the diagonal adds to the ridge
 * @property {number} diagonal the unit of the ridge
 */

/**
 * @param {import("./coefficients.js").Coefficients} four
 * @param {import("./spectrum.js").Mixture} mixture
 * @param {number} tau02
 * @returns {Problem}
 */
export function linearProblem(four, mixture, tau02) {
  const { p, counts, variances, mean } = mixture;
  const n = counts.reduce((a, b) => a + b, 0);
  const average = counts.reduce((sum, c, a) => sum + (c / n) * variances[a], 0);
  const t = variances.map((v) => Math.sqrt(p) * (v - average));
  const gram = (f) => variances.map((_, a) => variances.map((__, b) => f(a, b)));
  return {
    p,
    counts,
    values: [variances.map((v) => four.c1 * v), variances.map((v) => 2 * four.c2 * v * v), variances.map(() => 0)],
    weights: [1, 1 / p, 0],
    grams: [
      gram((a, b) => (a === b ? four.c1 * mean * mean : 0)),
      gram((a, b) => four.c2 * t[a] * t[b]),
      gram((a, b) => four.c3 * variances[a] * variances[b]),
    ],
    offset: four.diagonal - four.c1 * tau02,
    diagonal: four.diagonal,
  };
}

// ---- resolvents ------------------------------------------------------------------------------------------------

/** Q at the points g: everything that needs one resolvent. */
function resolvent(problem, g) {
  const { counts, p, values, weights, grams } = problem;
  const k = counts.length;
  const h = g.map((v, a) => scale(v, counts[a] / p)); // (n_a/p) g_a
  const shrink = values.map((row) => inv(row.reduce((sum, v, a) => add(sum, scale(h[a], v)), real(1)))); // 1/A
  const means0 = matrix(k, k, (a, b) => grams.reduce((sum, gram, j) => add(sum, scale(shrink[j], gram[a][b])), [0, 0]));
  const inner = matrix(k, k, (a, b) => add(real(a === b ? 1 : 0), mul(h[a], means0[a][b])));
  const turn = solve(inner, identity(k));
  const lift = matrix(k, k, (a, b) => mul(turn[a][b], h[b]));
  const means = product(means0, turn);
  const at = { problem, g, h, shrink, turn, lift, means };
  const traces = counts.map((_, b) => {
    const noise = values.reduce((sum, row, j) => add(sum, scale(shrink[j], weights[j] * row[b])), [0, 0]);
    return add(noise, scale(sub(means[b][b], traceOf(lift, forms(at, at)[b])), 1 / p));
  });
  return { ...at, traces };
}

/** m' A_i^(-1) Sigma_b A_j^(-1) m for every class b. */
function forms(one, two) {
  const { values, grams, counts } = one.problem;
  const both = one.shrink.map((v, j) => mul(v, two.shrink[j]));
  return counts.map((_, b) => matrix(counts.length, counts.length, (a, c) => grams.reduce((sum, gram, j) => add(sum, scale(both[j], gram[a][c] * values[j][b])), [0, 0])));
}

/** What two resolvents have in common: tr(S_a Q Sigma_b Q')/p, tr(S_a Q S_c Q')/p and m' Q Sigma_b Q' m. */
function pair(one, two) {
  const { values, weights, grams, counts, p } = one.problem;
  const k = counts.length;
  const inside = forms(one, two);
  const bent = (first, second) => (a, b) => {
    const weight = first.shrink.map((v, j) => scale(mul(mul(v, v), second.shrink[j]), values[j][a] * values[j][b]));
    const sandwich = matrix(k, k, (c, d) => grams.reduce((sum, gram, j) => add(sum, scale(weight[j], gram[c][d])), [0, 0]));
    return traceOf(first.lift, sandwich);
  };
  const [left, right] = [bent(one, two), bent(two, one)];
  const pure = matrix(k, k, (a, b) => {
    const noise = values.reduce((sum, row, j) => add(sum, scale(mul(one.shrink[j], two.shrink[j]), weights[j] * row[a] * row[b])), [0, 0]);
    const crossed = traceOf(product(one.lift, inside[b]), product(two.lift, inside[a]));
    return add(noise, scale(sub(crossed, add(left(a, b), right(a, b))), 1 / p));
  });
  const turned = inside.map((form) => product(product(transposed(one.turn), form), two.turn));
  const noises = matrix(k, k, (a, b) => add(pure[a][b], scale(turned[b][a][a], 1 / p)));
  const couplings = matrix(k, k, (a, c) => add(noises[a][c], scale(add(turned[a][c][c], mul(one.means[a][c], two.means[a][c])), 1 / p)));
  return { noises, couplings, turned };
}

/** The fixed point at ridges d (one per class), by Newton from above; complex ridges are reached by turning there. */
function solveAt(problem, ridges, start) {
  const zero = problem.counts.map(() => [0, 0]);
  let u = start ?? resolvent(problem, zero).traces.map((t, a) => add(t, real(size(ridges[a]))));
  const turns = ridges.some((d) => d[1] !== 0) && !start ? 8 : 1;
  for (let turn = 1; turn <= turns; turn++) {
    const here = ridges.map((d) => {
      const angle = (Math.atan2(d[1], d[0]) * turn) / turns;
      return scale([Math.cos(angle), Math.sin(angle)], size(d));
    });
    if (turn === 1 && turns > 1) u = newtonAt(problem, ridges.map((d) => real(size(d))), u);
    u = newtonAt(problem, here, u);
  }
  return { u, at: resolvent(problem, u.map(inv)) };
}

function newtonAt(problem, ridges, start) {
  const k = ridges.length;
  let u = start;
  for (let step = 0; step < 60; step++) {
    const at = resolvent(problem, u.map(inv));
    const { couplings } = pair(at, at);
    const jacobian = matrix(k, k, (a, c) => sub(real(a === c ? 1 : 0), mul(couplings[a][c], mul(at.h[c], at.g[c]))));
    const rest = matrix(k, 1, (a) => sub(add(ridges[a], at.traces[a]), u[a]));
    const move = solve(jacobian, rest).map((row) => row[0]);
    u = u.map((v, a) => add(v, move[a]));
    if (Math.max(...move.map((m, a) => size(m) / size(u[a]))) < 1e-12) return u;
  }
  throw new Error("the fixed point of the learning curve was not reached");
}

// ---- scores ----------------------------------------------------------------------------------------------------

/** Targets: +1 for the class, -1 for the others, one output per class. */
const target = (a, o) => (a === o ? 1 : -1);

/** G_b = sum_a (n_a/p) g_a (m_a' Q m_b) y_a, K x outputs. */
function scoreMeans(at) {
  const k = at.h.length;
  return matrix(k, k, (b, o) => at.h.reduce((sum, h, a) => add(sum, scale(mul(h, at.means[a][b]), target(a, o))), [0, 0]));
}

/** V_b between the scores of two resolvents, for every class b an outputs x outputs matrix. */
function scoreCovariances(one, two) {
  const { counts, p } = one.problem;
  const k = counts.length;
  const found = pair(one, two);
  const both = counts.map((c, a) => scale(mul(one.g[a], two.g[a]), c / p));
  const system = matrix(k, k, (a, c) => sub(real(a === c ? 1 : 0), mul(found.couplings[a][c], both[c])));
  const eta = solve(system, found.noises);
  return counts.map((_, b) => {
    const spread = both.map((v, a) => mul(v, eta[a][b]));
    const core = matrix(k, k, (a, c) => {
      let response = found.turned[b][a][c];
      for (let e = 0; e < k; e++) {
        const sandwiched = add(found.turned[e][a][c], mul(one.means[a][e], two.means[e][c]));
        response = add(response, mul(spread[e], sandwiched));
      }
      const first = mul(mul(eta[a][b], two.g[a]), two.means[a][c]);
      const second = mul(mul(eta[c][b], one.g[c]), one.means[a][c]);
      const value = mul(mul(sub(sub(response, first), second), one.h[a]), two.h[c]);
      return a === c ? add(value, spread[a]) : value;
    });
    return matrix(k, k, (o, q) => {
      let sum = [0, 0];
      for (let a = 0; a < k; a++) for (let c = 0; c < k; c++) sum = add(sum, scale(core[a][c], target(a, o) * target(c, q)));
      return sum;
    });
  });
}

/**
 * @typedef {object} Prediction
 * @property {number} accuracy
 * @property {number[][]} means of the scores, class by class
 * @property {number[][][]} covariances
 */

/** With a ridge relative to the mean diagonal. @param {Problem} problem @param {number} ridge @returns {Prediction} */
export function predictRidge(problem, ridge) {
  const level = real(problem.offset + ridge * problem.diagonal);
  const { at } = solveAt(problem, problem.counts.map(() => level));
  const first = (m) => m.map((row) => row.map((v) => v[0]));
  return finished(problem, first(scoreMeans(at)), scoreCovariances(at, at).map(first));
}

const NODES = 16;

/** Nodes z of the contour in the upper half plane and the weights e^z dz/(2 pi i). */
function contour() {
  return Array.from({ length: NODES / 2 }, (_, i) => {
    const theta = ((i + 0.5) * 2 * Math.PI) / NODES;
    const z = [NODES * (0.1309 - 0.1194 * theta ** 2), NODES * 0.25 * theta];
    const slope = [NODES * -0.2388 * theta, NODES * 0.25];
    return { z, weight: mul(mul(exp(z), slope), [0, -1 / NODES]) };
  });
}

/**
 * Gradient flow from zero on half the sum of squares, at increasing times in units of one over the mean diagonal. Each
 * call of the result gives the prediction at the next time; fixed points are continued from the time before.
 * @param {Problem} problem
 * @param {number[]} times
 * @returns {() => Prediction | null}
 */
export function flow(problem, times) {
  const nodes = contour().map((node) => ({ ...node, u: undefined }));
  let next = 0;
  return () => {
    if (next >= times.length) return null;
    const t = times[next++] / problem.diagonal;
    const solved = nodes.map((node) => {
      const ridges = problem.counts.map(() => add(real(problem.offset), scale(node.z, 1 / t)));
      const { u, at } = solveAt(problem, ridges, node.u);
      node.u = u;
      return { at, weight: mul(node.weight, inv(node.z)) };
    });
    return summed(problem, solved);
  };
}

/** Twice the real part of the sum over nodes; covariances over pairs of nodes, of which (i, j) and (j, i) are transposed. */
function summed(problem, nodes) {
  const k = problem.counts.length;
  const means = matrix(k, k, () => 0);
  const covariances = problem.counts.map(() => matrix(k, k, () => 0));
  nodes.forEach((one, i) => {
    scoreMeans(one.at).forEach((row, b) => row.forEach((v, o) => (means[b][o] += 2 * mul(one.weight, v)[0])));
    nodes.slice(i).forEach((two, j) => {
      for (const [other, weight] of [[two.at, two.weight], [mirrored(two.at), conj(two.weight)]]) {
        const factor = mul(one.weight, weight);
        scoreCovariances(one.at, other).forEach((m, b) =>
          m.forEach((row, o) =>
            row.forEach((v, q) => {
              const share = mul(factor, v)[0];
              covariances[b][o][q] += 2 * share;
              if (j > 0) covariances[b][q][o] += 2 * share;
            }),
          ),
        );
      }
    });
  });
  return finished(problem, means, covariances);
}

/** The resolvent at the conjugate point. */
function mirrored(at) {
  const all = (m) => m.map((row) => row.map(conj));
  return { ...at, g: at.g.map(conj), h: at.h.map(conj), shrink: at.shrink.map(conj), turn: all(at.turn), lift: all(at.lift), means: all(at.means) };
}

// ---- decisions -------------------------------------------------------------------------------------------------

function finished(problem, means, covariances) {
  const n = problem.counts.reduce((a, b) => a + b, 0);
  const right = means.map((_, b) => chosen(means[b], covariances[b], b));
  return { accuracy: right.reduce((sum, v, b) => sum + (v * problem.counts[b]) / n, 0), means, covariances };
}

/** P(score b is the largest) of N(mean, covariance). */
function chosen(mean, covariance, b) {
  const others = mean.map((_, c) => c).filter((c) => c !== b);
  const lead = others.map((c) => mean[b] - mean[c]);
  const spread = others.map((c) => others.map((d) => covariance[b][b] - covariance[b][c] - covariance[b][d] + covariance[c][d]));
  return orthant(lead, spread);
}

const LATTICE = 256;
const PRIMES = [2, 3, 5, 7, 11];

/** P(all entries > 0): exact in one dimension, a folded lattice in the others (Genz), error about 1e-3. */
function orthant(mean, covariance) {
  const k = mean.length;
  const scales = covariance.map((row, i) => Math.sqrt(Math.max(row[i], 1e-300)));
  if (k === 1) return normalCdf(mean[0] / scales[0]);
  const order = mean.map((m, i) => [m / scales[i], i]).sort((x, y) => x[0] - y[0]).map(([, i]) => i);
  const unit = order.map((i) => mean[i] / scales[i]);
  const factor = cholesky(order.map((i) => order.map((j) => covariance[i][j] / (scales[i] * scales[j]) + (i === j ? 1e-11 : 0))));
  let sum = 0;
  for (let s = 0; s < LATTICE; s++) {
    let weight = 1;
    const draws = [];
    for (let i = 0; i < k; i++) {
      const drift = unit[i] + draws.reduce((d, v, j) => d + factor[i][j] * v, 0);
      const inside = normalCdf(drift / factor[i][i]);
      weight *= inside;
      if (i < k - 1) draws.push(-normalQuantile(Math.min(1 - 1e-16, Math.max(1e-16, fold((s + 0.5) * Math.sqrt(PRIMES[i])) * inside))));
    }
    sum += weight;
  }
  return sum / LATTICE;
}

const fold = (x) => Math.abs(2 * (x % 1) - 1);

function cholesky(a) {
  const out = a.map((row) => row.map(() => 0));
  a.forEach((row, i) => {
    for (let j = 0; j <= i; j++) {
      let v = row[j];
      for (let k = 0; k < j; k++) v -= out[i][k] * out[j][k];
      out[i][j] = i === j ? Math.sqrt(Math.max(v, 1e-300)) : v / out[j][j];
    }
  });
  return out;
}

/** The inverse of normalCdf: a logarithmic start and Newton steps. @param {number} u */
export function normalQuantile(u) {
  if (u > 0.5) return -normalQuantile(1 - u);
  let x = u > 0.02 ? (u - 0.5) * Math.sqrt(2 * Math.PI) : -Math.sqrt(-2 * Math.log(u));
  for (let step = 0; step < 12; step++) {
    const density = Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);
    const change = (normalCdf(x) - u) / density;
    // Halley: the density falls by exp(-x change), which Newton ignores
    const move = change / (1 + 0.5 * x * change);
    x -= move;
    if (Math.abs(move) < 1e-12) break;
  }
  return x;
}
