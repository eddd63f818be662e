// From what the reader has set to everything the page shows: networks, mixture, twins. No drawing here.

import { ACTIVATIONS, affine } from "./activations.js";
import { centred, explicitCoefficients, implicitCoefficients, limit } from "./coefficients.js";
import { activationFrom } from "./formula.js";
import { explicitKernel, implicitKernel } from "./kernels.js";
import { moments } from "./moments.js";
import { spectralLaw, squaredScale } from "./spectrum.js";
import { designs } from "./twins.js";

const KERNEL_POINTS = 73;

/** @param {import("./state.js").State} state */
export function build(state) {
  const activation = state.activation === "formula" ? { ...activationFrom(state.formula), custom: true } : ACTIVATIONS[state.activation];
  const sigma_a2 = state.fraction * limit(activation);
  const deq = { activation, sigma_a2, sigma_b2: sigma_a2 < 1 ? 1 - sigma_a2 : 1 };
  const mixture = mixtureOf(state);
  const tau0 = Math.sqrt(squaredScale(mixture));
  const matched = designs(deq, tau0);
  const depth = matched[0]?.activations.length ?? 2;
  return { state, activation, deq, mixture, tau0, centred: centred(deq, tau0), designs: matched, plain: plainNetwork(activation, depth, tau0) };
}

/** Balanced classes with means of equal norm on different axes and covariances v_a I. */
function mixtureOf(state) {
  const { classes, p, n, scale, mean, spread } = state;
  const counts = Array.from({ length: classes }, (_, a) => Math.floor(n / classes) + (a < n % classes ? 1 : 0));
  const variances = counts.map((_, a) => scale ** 2 * (1 + (spread * a) / Math.sqrt(p)));
  return { p, counts, variances, mean: scale * mean };
}

/** The activation itself in every layer, centred at the scale it meets. */
function plainNetwork(phi, depth, tau0) {
  const activations = [];
  let tau = tau0;
  for (let l = 0; l < depth; l++) {
    const m = moments(phi, tau);
    activations.push(affine(phi, { shift: -m.mean }));
    tau = Math.sqrt(m.variance);
  }
  return { activations };
}

/**
 * The kernel of DEQ, twins and plain network against the angle, at norms tau0 and ratio * tau0.
 * Twins are made for the conjugate kernel; for the other kernels they are not drawn.
 */
export function kernelCurves(model) {
  const { tau0, state } = model;
  const [sx, sy] = [tau0 ** 2, (state.norm * tau0) ** 2];
  const angles = Array.from({ length: KERNEL_POINTS }, (_, i) => (180 * i) / (KERNEL_POINTS - 1));
  const on = (kernel) => angles.map((t) => kernel(Math.sqrt(sx * sy) * Math.cos((Math.PI * t) / 180))[state.kernel]);
  const deq = on(implicitKernel(model.centred, sx, sy));
  const plain = on(explicitKernel(model.plain, sx, sy));
  const twins = state.kernel === "ck" ? model.designs.map((d) => ({ ...d, values: on(explicitKernel(d, sx, sy)) })) : [];
  const factor = bestScalar(deq, plain);
  return { angles, deq, plain, scaled: plain.map((v) => factor * v), factor, twins };
}

/** The factor that makes the largest error of factor * other against truth as small as it can be. */
export function bestScalar(truth, other) {
  const worst = (c) => Math.max(...truth.map((v, i) => Math.abs(v - c * other[i])));
  let [low, high] = [0, 2 * Math.max(...truth.map((v, i) => Math.abs(v / (other[i] || Infinity))))];
  for (let step = 0; step < 120; step++) {
    const [a, b] = [low + (high - low) / 3, high - (high - low) / 3];
    if (worst(a) < worst(b)) high = b;
    else low = a;
  }
  return 0.5 * (low + high);
}

/** The four numbers of the three networks. */
export function numbers(model) {
  const { tau0, state, deq } = model;
  const twin = state.kernel === "ck" && model.designs.length ? explicitCoefficients(model.designs[0], tau0, "ck") : null;
  return {
    deq: implicitCoefficients(deq, tau0, state.kernel),
    twin,
    plain: explicitCoefficients(model.plain, tau0, state.kernel),
  };
}

/** The predicted spectra of the three networks. */
export function spectra(model) {
  const four = numbers(model);
  const law = (c) => c && spectralLaw(c, model.mixture, model.tau0 ** 2);
  return { deq: law(four.deq), twin: law(four.twin), plain: law(four.plain) };
}
