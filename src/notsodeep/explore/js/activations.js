// The activations: value and slope of each, where they bend, on what length they vary.
// The derivatives of higher order that the theory asks for come from integration by parts, so none is written here.

/**
 * @typedef {object} Activation
 * @property {string} name
 * @property {(x: number) => number} value
 * @property {(x: number) => number} slope
 * @property {number} lipschitz the largest |phi'|
 * @property {number[]} kinks points where a derivative jumps
 * @property {number} feature length on which each smooth piece is resolved by one panel
 * @property {"odd" | "even" | null} parity
 * @property {boolean} homogeneous phi(c x) = c phi(x) for c > 0
 * @property {boolean} piecewiseLinear
 * @property {string} formula for people, in plain text
 */

const SQRT_2PI = Math.sqrt(2 * Math.PI);
const SELU = { alpha: 1.6732632423543772, gain: 1.0507009873554805 };

/** The logistic function without overflow. @param {number} x */
export function sigmoid(x) {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

/** log(1 + exp(x)) without overflow. @param {number} x */
export function softplus(x) {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}

/**
 * The Gauss error function to rounding: its series near zero, a continued fraction of erfc beyond.
 * @param {number} x
 */
export function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x); // to rounding
  return size < 2.5 ? erfSeries(x) : Math.sign(x) * (1 - erfcTail(size));
}

/** 1 - erf(x) without cancellation. @param {number} x */
export function erfc(x) {
  return x < 2.5 ? 1 - erf(x) : erfcTail(x);
}

function erfSeries(x) {
  // erf x = 2/sqrt(pi) exp(-x^2) sum_k 2^k x^(2k+1) / (1 3 5 ... (2k+1)): positive terms only
  let term = x;
  let sum = x;
  for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum); k++) {
    term *= (2 * x * x) / (2 * k + 1);
    sum += term;
  }
  return ((2 * Math.exp(-x * x)) / Math.sqrt(Math.PI)) * sum;
}

function erfcTail(x) {
  let fraction = 0;
  for (let k = x < 6 ? 60 : 14; k > 0; k--) fraction = (0.5 * k) / (x + fraction);
  return Math.exp(-x * x) / (Math.sqrt(Math.PI) * (x + fraction));
}

/** Distribution function of the standard normal. @param {number} x */
export function normalCdf(x) {
  return 0.5 * erfc(-x / Math.SQRT2);
}

const elu = (x, alpha) => (x > 0 ? x : alpha * Math.expm1(x));
const eluSlope = (x, alpha) => (x > 0 ? 1 : alpha * Math.exp(x));

/** @type {Record<string, [string, (x: number) => number, (x: number) => number, object?]>} */
const DEFINITIONS = {
  relu: ["max(x, 0)", (x) => Math.max(x, 0), (x) => (x > 0 ? 1 : 0), { kinks: [0], homogeneous: true }],
  leaky_relu: [
    "x for x > 0, 0.01 x for x < 0",
    (x) => (x > 0 ? x : 0.01 * x),
    (x) => (x > 0 ? 1 : 0.01),
    { kinks: [0], homogeneous: true },
  ],
  tanh: ["tanh x", Math.tanh, (x) => 1 - Math.tanh(x) ** 2, { parity: "odd" }],
  arctan: ["arctan x", Math.atan, (x) => 1 / (1 + x * x), { parity: "odd", feature: 0.5 }],
  erf: [
    "erf x",
    erf,
    (x) => (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x),
    { parity: "odd", lipschitz: 2 / Math.sqrt(Math.PI) },
  ],
  sigmoid: ["1 / (1 + exp(-x))", sigmoid, (x) => sigmoid(x) * sigmoid(-x), { lipschitz: 0.25 }],
  silu: [
    "x / (1 + exp(-x))",
    (x) => x * sigmoid(x),
    (x) => sigmoid(x) * (1 + x * sigmoid(-x)),
    { lipschitz: 1.099839320128867 },
  ],
  gelu: [
    "x Phi(x)",
    (x) => x * normalCdf(x),
    (x) => normalCdf(x) + (x * Math.exp(-0.5 * x * x)) / SQRT_2PI,
    { lipschitz: 1.1289041451851548 },
  ],
  elu: ["x for x > 0, exp(x) - 1 for x < 0", (x) => elu(x, 1), (x) => eluSlope(x, 1), { kinks: [0] }],
  selu: [
    "1.0507 (x for x > 0, 1.6733 (exp(x) - 1) for x < 0)",
    (x) => SELU.gain * elu(x, SELU.alpha),
    (x) => SELU.gain * eluSlope(x, SELU.alpha),
    { kinks: [0], lipschitz: SELU.alpha * SELU.gain },
  ],
  mish: [
    "x tanh(log(1 + exp(x)))",
    (x) => x * Math.tanh(softplus(x)),
    (x) => Math.tanh(softplus(x)) + x * sigmoid(x) * (1 - Math.tanh(softplus(x)) ** 2),
    { lipschitz: 1.088498161251728 },
  ],
  hard_swish: [
    "x clip(x + 3, 0, 6) / 6",
    (x) => (x * Math.min(6, Math.max(0, x + 3))) / 6,
    (x) => (Math.abs(x) < 3 ? x / 3 + 0.5 : x > 0 ? 1 : 0),
    { kinks: [-3, 3], lipschitz: 1.5 },
  ],
  softplus: ["log(1 + exp(x))", softplus, sigmoid],
  sin: ["sin x", Math.sin, Math.cos, { parity: "odd" }],
  cos: ["cos x", Math.cos, (x) => -Math.sin(x), { parity: "even" }],
  hard_tanh: [
    "clip(x, -1, 1)",
    (x) => Math.min(1, Math.max(-1, x)),
    (x) => (Math.abs(x) < 1 ? 1 : 0),
    { kinks: [-1, 1], parity: "odd", piecewiseLinear: true },
  ],
  linear: ["x", (x) => x, () => 1, { parity: "odd", homogeneous: true }],
};

/** @type {Record<string, Activation>} */
export const ACTIVATIONS = Object.fromEntries(
  Object.entries(DEFINITIONS).map(([name, [formula, value, slope, more]]) => [
    name,
    { name, formula, value, slope, lipschitz: 1, kinks: [], feature: 1, parity: null, homogeneous: false,
      piecewiseLinear: false, ...more },
  ]),
);

/**
 * gain * phi(scale * x) + skip * x + shift.
 * @param {Activation} phi
 * @param {{gain?: number, scale?: number, skip?: number, shift?: number}} how
 * @returns {Activation}
 */
export function affine(phi, { gain = 1, scale = 1, skip = 0, shift = 0 }) {
  return {
    name: phi.name,
    formula: phi.formula,
    value: (x) => gain * phi.value(scale * x) + skip * x + shift,
    slope: (x) => gain * scale * phi.slope(scale * x) + skip,
    lipschitz: Math.abs(gain * scale) * phi.lipschitz + Math.abs(skip),
    kinks: phi.kinks.map((c) => c / scale),
    feature: phi.feature / scale,
    parity: shift === 0 && skip === 0 ? phi.parity : phi.parity === "odd" && shift === 0 ? "odd" : null,
    homogeneous: phi.homogeneous && shift === 0,
    piecewiseLinear: phi.piecewiseLinear || phi.homogeneous,
  };
}

/** a clip(x, -c, c). @param {number} a @param {number} c @returns {Activation} */
export function hardTanh(a, c) {
  return { ...affine(ACTIVATIONS.hard_tanh, { gain: a * c, scale: 1 / c }), name: "hard_tanh" };
}

/** `right` x for x > 0, `left` x for x < 0. @param {number} right @param {number} left @returns {Activation} */
export function leaky(right, left) {
  return {
    ...ACTIVATIONS.leaky_relu,
    value: (x) => (x > 0 ? right * x : left * x),
    slope: (x) => (x > 0 ? right : left),
    lipschitz: Math.max(Math.abs(right), Math.abs(left)),
  };
}
