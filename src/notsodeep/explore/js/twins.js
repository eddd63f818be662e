// Shallow explicit networks with the conjugate kernel of the centred DEQ in high dimension (docs/theory.md, section 6).

import { affine, erf, erfc, hardTanh, leaky } from "./activations.js";
import { implicitCoefficients } from "./coefficients.js";
import { readOut } from "./kernels.js";
import { hermiteCoefficients, moments } from "./moments.js";
import { bracketed } from "./roots.js";

/**
 * @typedef {object} Design
 * @property {string} family
 * @property {import("./activations.js").Activation[]} activations one per layer, each centred at its input scale
 * @property {string} words what the layers are, for people
 * @property {string[]} python the activations as Python expressions
 */

/**
 * The families that can match this DEQ, best first; empty where none of these small ones can.
 * @param {import("./kernels.js").Deq} deq as given (not centred)
 * @param {number} tau0
 * @returns {Design[]}
 */
export function designs(deq, tau0) {
  if (deq.activation.parity === "odd") return [skip(deq, tau0), clipped(deq, tau0)].filter((d) => d !== null);
  const pair = deq.activation.homogeneous ? leakyPair(deq, tau0) : null;
  return pair ? [pair] : [];
}

/** (P(|xi| < z), E[clip(xi, -z, z)^2]). */
function clipNumbers(z) {
  const inside = erf(z / Math.SQRT2);
  const density = Math.sqrt(2 / Math.PI) * Math.exp(-0.5 * z * z);
  return [inside, inside - z * density + z * z * erfc(z / Math.SQRT2)];
}

/** One layer a clip(x, -c, c): c1 tau0^2 / diagonal = P^2 / M decides c. Null below 2/pi, which no clip reaches. */
function clipped(deq, tau0) {
  const four = implicitCoefficients(deq, tau0, "ck");
  const ratio = (four.c1 * tau0 * tau0) / four.diagonal;
  const gap = (z) => {
    const [inside, square] = clipNumbers(z);
    return (inside * inside) / square - ratio;
  };
  if (gap(1e-7) >= 0 || gap(40) <= 0) return null;
  const z = bracketed(gap, 1e-7, 40);
  const [a, c] = [Math.sqrt(four.c1) / clipNumbers(z)[0], z * tau0];
  return {
    family: "hard_tanh",
    activations: [hardTanh(a, c)],
    words: `${a.toFixed(4)} clip(x, ±${c.toFixed(4)})`,
    python: [`nsd.activation("hard_tanh", a=${a}, c=${c})`],
  };
}

/**
 * One layer a phi(b x) + d x: a and d follow from c1 and the diagonal for every b, which is spent on the next order,
 * the cubic term of the kernel in the cosine.
 */
function skip(deq, tau0) {
  const four = implicitCoefficients(deq, tau0, "ck");
  const wanted = Math.log(cubicTerm(deq, four, tau0));
  const distance = (log) => {
    const layer = skipLayer(deq.activation, four, tau0, Math.exp(log));
    if (!layer) return Infinity;
    const third = hermiteCoefficients(layer.phi, tau0, 4).value[3];
    return Math.abs(2 * Math.log(Math.abs(third)) - wanted);
  };
  const middle = Math.log(four.tau_star / tau0);
  const layer = skipLayer(deq.activation, four, tau0, Math.exp(lowest(distance, middle - 1.2, middle + 1.2)));
  if (!layer) return null;
  const { gain, scale, skip: line } = layer;
  return {
    family: "skip",
    activations: [layer.phi],
    words: `${gain.toFixed(4)} φ(${scale.toFixed(4)} x) ${line < 0 ? "−" : "+"} ${Math.abs(line).toFixed(4)} x`,
    python: [`${pythonName(deq.activation)}.affine(gain=${gain}, scale=${scale}, skip=${line})`],
  };
}

/** g_3 of the DEQ's kernel sum_k g_k cos^k at norm tau0: with A_k = a_k^2 and rho = rho_1 r + ..., A_3 rho_1^3 q/(q - s2a A_1). */
function cubicTerm(deq, four, tau0) {
  const q = four.tau_star ** 2;
  const [, a1, , a3] = hermiteCoefficients(deq.activation, four.tau_star, 4).value.map((a) => a * a);
  const rest = q - deq.sigma_a2 * a1;
  return readOut(deq, (a3 * ((deq.sigma_b2 * tau0 * tau0) / rest) ** 3 * q) / rest, 0);
}

function skipLayer(phi, four, tau0, scale) {
  const m = moments(affine(phi, { scale }), tau0);
  const curved = m.variance - (m.slope * tau0) ** 2;
  if (curved <= 1e-9 * (m.slope * tau0) ** 2) return null;
  const gain = Math.sqrt(Math.max(0, four.diagonal - four.c1 * tau0 * tau0) / curved);
  const line = Math.sqrt(four.c1) - gain * m.slope;
  return { phi: affine(phi, { gain, scale, skip: line }), gain, scale, skip: line };
}

/** Where f is lowest on [low, high]: a coarse grid, then golden sections. */
function lowest(f, low, high) {
  const grid = Array.from({ length: 13 }, (_, i) => low + ((high - low) * i) / 12);
  const values = grid.map(f);
  const at = values.indexOf(Math.min(...values));
  let [a, b] = [grid[Math.max(at - 1, 0)], grid[Math.min(at + 1, 12)]];
  const golden = (Math.sqrt(5) - 1) / 2;
  for (let step = 0; step < 20; step++) {
    const [x, y] = [b - golden * (b - a), a + golden * (b - a)];
    if (f(x) < f(y)) b = y;
    else a = x;
  }
  return 0.5 * (a + b);
}

/**
 * Two Leaky-ReLU layers with shares p and u of their linear parts: u p = t1 and F (u (1 - p) + (1 - u) p^2) = t3, in
 * units of the diagonal; the branch on which layer 1 is the more linear one.
 */
function leakyPair(deq, tau0) {
  const four = implicitCoefficients(deq, tau0, "ck");
  const [f, kappa] = [1 / (Math.PI - 2), 1 - 2 / Math.PI];
  const t1 = (four.c1 * tau0 ** 2) / four.diagonal;
  const t3 = (four.c3 * tau0 ** 4) / four.diagonal;
  const bend = (u) => u - t1 + (1 - u) * (t1 / u) ** 2 - t3 / f;
  const bottom = lowest(bend, t1, 1);
  if (!(bend(bottom) <= 0 && bend(t1) >= 0)) return null;
  const u = bracketed(bend, t1, bottom);
  const halves = (p) => [Math.sqrt(p), Math.sqrt(Math.max(0, 1 - p) / kappa)];
  const size = Math.sqrt(four.diagonal) / tau0;
  const slopes = [halves(t1 / u), halves(u).map((v) => size * v)].map(([m, n]) => [m + n, m - n]);
  // the first layer keeps the scale tau0, so both are centred there
  const centres = slopes.map(([right, left]) => -((right - left) * tau0) / Math.sqrt(2 * Math.PI));
  return {
    family: "leaky_relu",
    activations: slopes.map(([right, left], i) => affine(leaky(right, left), { shift: centres[i] })),
    words: slopes.map(([right, left]) => `leaky ${right.toFixed(4)} / ${left.toFixed(4)}`).join(", then "),
    python: slopes.map(
      ([right, left], i) => `nsd.activation("leaky_relu", gain=${right}, slope=${left}).affine(shift=${centres[i]})`,
    ),
  };
}

/** @param {import("./activations.js").Activation} phi */
export function pythonName(phi) {
  return phi.custom ? `phi` : `nsd.activation("${phi.name}")`;
}
