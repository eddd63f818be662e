// One-dimensional Gaussian means of an activation at scale tau: the numbers that every formula of the theory is made of.

import { normalRule } from "./quadrature.js";

/**
 * @typedef {object} Moments
 * @property {number} mean E[phi(tau xi)]
 * @property {number} square E[phi^2]
 * @property {number} variance E[(phi - mean)^2]
 * @property {number} slope E1 = E[phi'] = E[xi phi]/tau
 * @property {number} curvature E2 = E[phi''] = E[(xi^2 - 1) phi]/tau^2
 * @property {number} slopeSquare D2 = E[phi'^2]
 * @property {number} squareCurvature Q2 = E[(phi^2)''] = E[(xi^2 - 1) phi^2]/tau^2
 */

/**
 * @param {import("./activations.js").Activation} phi
 * @param {number} tau
 * @returns {Moments}
 */
export function moments(phi, tau) {
  const { nodes, weights } = normalRule(tau, phi.kinks, phi.feature);
  const values = nodes.map((xi) => phi.value(tau * xi));
  let [mean, square, slope, curvature, slopeSquare, squareCurvature] = [0, 0, 0, 0, 0, 0];
  for (let i = 0; i < nodes.length; i++) {
    const [xi, w, f] = [nodes[i], weights[i], values[i]];
    mean += w * f;
    square += w * f * f;
    slope += w * xi * f;
    slopeSquare += w * phi.slope(tau * xi) ** 2;
  }
  let variance = 0;
  for (let i = 0; i < nodes.length; i++) {
    const [xi, w, f] = [nodes[i], weights[i], values[i]];
    variance += w * (f - mean) ** 2;
    // (xi^2 - 1) has mean zero: taking the mean off first keeps the digits
    curvature += w * (xi * xi - 1) * (f - mean);
    squareCurvature += w * (xi * xi - 1) * (f * f - square);
  }
  slope /= tau;
  curvature /= tau * tau;
  squareCurvature /= tau * tau;
  if (phi.parity === "odd") [mean, curvature, variance] = [0, 0, square];
  if (phi.parity === "even") slope = 0;
  return { mean, square, variance, slope, curvature, slopeSquare, squareCurvature };
}

/**
 * a_k = E[phi(tau xi) h_k(xi)], h_k the orthonormal Hermite polynomials, and the same for phi'.
 * @param {import("./activations.js").Activation} phi
 * @param {number} tau
 * @param {number} terms
 * @returns {{value: Float64Array, slope: Float64Array}}
 */
export function hermiteCoefficients(phi, tau, terms) {
  // a polynomial of degree k oscillates on 1/sqrt(k): panels follow it
  const { nodes, weights } = normalRule(Math.max(tau, 1), phi.kinks.map((c) => (c / tau) * Math.max(tau, 1)), Math.min(
    phi.feature * Math.max(1, 1 / tau),
    4 / Math.sqrt(terms),
  ));
  const value = new Float64Array(terms);
  const slope = new Float64Array(terms);
  for (let i = 0; i < nodes.length; i++) {
    const xi = nodes[i];
    const [f, d] = [weights[i] * phi.value(tau * xi), weights[i] * phi.slope(tau * xi)];
    let [before, here] = [0, 1];
    for (let k = 0; k < terms; k++) {
      value[k] += f * here;
      slope[k] += d * here;
      [before, here] = [here, (xi * here - Math.sqrt(k) * before) / Math.sqrt(k + 1)];
    }
  }
  return { value, slope };
}
