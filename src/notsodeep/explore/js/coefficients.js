// The four numbers that decide a kernel on high-dimensional data (docs/theory.md, sections 4 and 5).

import { affine } from "./activations.js";
import { readOut } from "./kernels.js";
import { moments } from "./moments.js";
import { newton } from "./roots.js";

/**
 * @typedef {object} Coefficients
 * @property {number} c1 what the kernel takes of the inner products: the bulk and the class means
 * @property {number} c2 what it takes of the norms: traces of the covariances
 * @property {number} c3 what it takes of squared inner products: shapes of the covariances
 * @property {number} diagonal the kernel of a point with itself
 * @property {number} [tau_star] the scale at which the centred DEQ works
 * @property {number} [bias] the mean that centring takes off
 * @property {number} alpha4
 */

/** The largest sigma_a2 with a guaranteed equilibrium. @param {import("./activations.js").Activation} phi */
export function limit(phi) {
  return 1 / (4 * phi.lipschitz ** 2);
}

/**
 * tau* of tau^2 = s2a Var[phi(tau xi)] + s2b tau0^2.
 * @param {import("./kernels.js").Deq} deq
 * @param {number} tau0
 */
export function centredScale(deq, tau0) {
  const drive = deq.sigma_b2 * tau0 * tau0;
  const rest = (q) => {
    const m = moments(deq.activation, Math.sqrt(q));
    const response = 0.5 * (m.squareCurvature - 2 * m.mean * m.curvature);
    return [q - deq.sigma_a2 * m.variance - drive, Math.max(0.05, 1 - deq.sigma_a2 * response)];
  };
  const start = drive + deq.sigma_a2 * moments(deq.activation, Math.sqrt(drive)).variance;
  return Math.sqrt(newton(rest, drive, Infinity, start));
}

/**
 * The DEQ with phi - E[phi(tau* xi)], of which the theorems speak.
 * @param {import("./kernels.js").Deq} deq
 * @param {number} tau0
 * @returns {import("./kernels.js").Deq}
 */
export function centred(deq, tau0) {
  const { mean } = moments(deq.activation, centredScale(deq, tau0));
  return { ...deq, activation: affine(deq.activation, { shift: -mean }) };
}

/**
 * @param {import("./kernels.js").Deq} deq
 * @param {number} tau0
 * @param {"ck" | "ntk" | "ntk_frozen"} kernel
 * @returns {Coefficients}
 */
export function implicitCoefficients(deq, tau0, kernel) {
  const tau = centredScale(deq, tau0);
  const m = moments(deq.activation, tau);
  const { sigma_a2: s2a, sigma_b2: s2b } = deq;
  const [e1, e2, d2] = [m.slope, m.curvature, m.slopeSquare];
  const q2 = m.squareCurvature - 2 * m.mean * e2;
  const den = 1 - s2a * e1 * e1;
  const lam = s2b / den;
  const alpha1 = e1 * e1 * lam;
  const alpha4 = s2b / (1 - 0.5 * s2a * q2);
  const alpha2 = (e2 * alpha4) ** 2 / (4 * den);
  const alpha3 = (e2 * lam) ** 2 / (2 * den);
  const four = {
    ck: [alpha1, alpha2, alpha3, m.variance],
    ntk_frozen: [
      alpha1 / den,
      alpha2 / den,
      (alpha3 + (alpha1 / den) * s2a * e2 * e2 * lam) / den,
      m.variance / (1 - s2a * d2),
    ],
    ntk: [
      alpha1 * (1 + 1 / den),
      alpha2 / den,
      alpha3 / den + ((lam * e2) / den) ** 2,
      m.variance + (tau * tau * d2) / (1 - s2a * d2),
    ],
  }[kernel];
  const [c1, c2, c3, diagonal] = four.map((c, i) => readOut(deq, c, [1, 0, 0, tau0 * tau0][i]));
  return { c1, c2, c3, diagonal, alpha4, tau_star: tau, bias: m.mean };
}

/**
 * Each layer is centred at its own input scale.
 * @param {import("./kernels.js").Enn} enn
 * @param {number} tau0
 * @param {"ck" | "ntk" | "ntk_frozen"} kernel
 * @returns {Coefficients}
 */
export function explicitCoefficients(enn, tau0, kernel) {
  let [a1, a2, a3, a4, square] = [1, 0, 0, 1, tau0 * tau0];
  let [b1, b2, b3, kappa2] = kernel === "ntk" ? [1, 0, 0, square] : [0, 0, 0, 0];
  for (const phi of enn.activations) {
    const m = moments(phi, Math.sqrt(square));
    const [e1, e2] = [m.slope ** 2, m.curvature ** 2];
    const q2 = m.squareCurvature - 2 * m.mean * m.curvature;
    b3 = e1 * b3 + e2 * a1 * b1;
    [a1, a2, a3, a4] = [e1 * a1, e1 * a2 + (e2 * a4 ** 2) / 4, e1 * a3 + (e2 * a1 ** 2) / 2, 0.5 * q2 * a4];
    square = m.variance;
    [b1, b2, b3, kappa2] = [a1 + e1 * b1, a2 + e1 * b2, a3 + b3, square + kappa2 * m.slopeSquare];
  }
  const [c1, c2, c3, diagonal] = kernel === "ck" ? [a1, a2, a3, square] : [b1, b2, b3, kappa2];
  return { c1, c2, c3, diagonal, alpha4: a4 };
}
