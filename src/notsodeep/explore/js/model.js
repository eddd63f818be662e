// From what the reader has set to everything the page shows: networks, mixture, twins. No drawing here.

import { ACTIVATIONS, affine } from "./activations.js";
import { centred, explicitCoefficients, implicitCoefficients, limit } from "./coefficients.js";
import { activationFrom } from "./formula.js";
import { explicitKernel, implicitKernel } from "./kernels.js";
import { moments } from "./moments.js";
import { oneLayer } from "./onelayer.js";
import { thresholdLayer } from "./thresholds.js";
import { spectralLaw, squaredScale } from "./spectrum.js";
import { designs } from "./twins.js";

const KERNEL_POINTS = 73;

/** @param {import("./state.js").State} state */
export function build(state) {
  const activation = state.activation === "formula" ? { ...activationFrom(state.formula), custom: true } : ACTIVATIONS[state.activation];
  const sigma_a2 = state.fraction * limit(activation);
  const deq = { activation, sigma_a2, sigma_b2: sigma_a2 < 1 ? 1 - sigma_a2 : 1, readout: state.readout };
  const mixture = mixtureOf(state);
  const tau0 = Math.sqrt(squaredScale(mixture));
  const plain = { activations: [affine(activation, { shift: -moments(activation, tau0).mean })] };
  return { state, activation, deq, mixture, tau0, centred: centred(deq, tau0), designs: designs(deq, tau0), plain, layers: new Map() };
}

/** Balanced classes with means of equal norm on different axes and covariances v_a I. */
function mixtureOf(state) {
  const { classes, p, n, scale, mean, spread } = state;
  const counts = Array.from({ length: classes }, (_, a) => Math.floor(n / classes) + (a < n % classes ? 1 : 0));
  const variances = counts.map((_, a) => scale ** 2 * (1 + (spread * a) / Math.sqrt(p)));
  return { p, counts, variances, mean: scale * mean };
}

/** The range of norms of the one-layer twin: half to one and a half times the typical norm. @param {number} tau0 */
export const normRange = (tau0) => [0.5 * tau0, 1.5 * tau0];

/**
 * The one-layer twin of the DEQ as it is, computed once: `smooth` or `bent` with its details, the kernel at two norms,
 * and the values of its units at norm tau0. Null for activations with kinks that are not homogeneous.
 */
export function layerOf(model, kernel = model.state.kernel) {
  if (!model.layers.has(kernel)) model.layers.set(kernel, findLayer(model, kernel));
  return model.layers.get(kernel);
}

function findLayer({ deq, activation, tau0, state }, kernel) {
  if (activation.homogeneous && activation.kinks.length) {
    const bent = thresholdLayer(deq, kernel, state.kinds);
    return { bent, kernel: bent.kernel, values: (u) => bent.units.map((unit) => tau0 * unit.value(u)) };
  }
  const smooth = oneLayer(deq, kernel, ...normRange(tau0), state.kinds);
  return smooth && { smooth, kernel: smooth.kernel, values: smooth.units };
}

/** The kernel of DEQ, one-layer twin and plain layer against the angle, at norms tau0 and ratio * tau0; none is centred. */
export function kernelCurves(model) {
  const { tau0, state } = model;
  const [sx, sy] = [tau0 ** 2, (state.norm * tau0) ** 2];
  const angles = Array.from({ length: KERNEL_POINTS }, (_, i) => (180 * i) / (KERNEL_POINTS - 1));
  const on = (kernel) => angles.map((t) => kernel(Math.sqrt(sx * sy) * Math.cos((Math.PI * t) / 180))[state.kernel]);
  const deq = on(implicitKernel(model.deq, sx, sy));
  const plain = on(explicitKernel({ activations: [model.activation] }, sx, sy));
  const layer = layerOf(model)?.kernel(tau0, state.norm * tau0);
  const twin = layer ? angles.map((t) => layer(Math.cos((Math.PI * t) / 180))) : null;
  const factor = bestScalar(deq, plain);
  return { angles, deq, plain, scaled: plain.map((v) => factor * v), factor, twin };
}

/** The largest distance of a papers' twin from the conjugate kernel of the centred DEQ at norm tau0, over its size. */
export function distanceOf(model, design) {
  const s = model.tau0 ** 2;
  const [exact, twin] = [implicitKernel(model.centred, s, s), explicitKernel(design, s, s)];
  const dots = Array.from({ length: KERNEL_POINTS }, (_, i) => s * Math.cos((Math.PI * i) / (KERNEL_POINTS - 1)));
  return Math.max(...dots.map((dot) => Math.abs(exact(dot).ck - twin(dot).ck))) / Math.abs(exact(s).ck);
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
