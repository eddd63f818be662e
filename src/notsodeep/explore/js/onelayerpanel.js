// The panel on the one-layer twin: what J kinds of units leave of the kernel, and what the units look like.

import { draw, short } from "./chart.js";
import { oneLayer } from "./onelayer.js";

const KINDS = ["other", "plain", "scaled", "twin"];

/** The range of norms that is shown: half to one and a half times the typical norm. @param {number} tau0 */
export const normRange = (tau0) => [0.5 * tau0, 1.5 * tau0];

/** @param {ReturnType<typeof import("./model.js").build>} model */
export function drawOneLayer(model) {
  const { state, deq, tau0, activation } = model;
  const [low, high] = normRange(tau0);
  const found = oneLayer(deq, state.kernel, low, high, state.kinds);
  const hosts = ["fig-onelayer", "fig-units"].map((id) => document.getElementById(id));
  const words = document.getElementById("say-onelayer");
  const intro = "A single hidden layer of units ψ(w·x/|x|; |x|) that see the norm of the input, for the DEQ as it is, without centring.";
  if (!found) {
    hosts.forEach((host) => host.replaceChildren());
    words.textContent = activation.homogeneous
      ? `${intro} For this activation the kernel is |x||y| times a function of the angle, so one kind of units is exact for every norm; nsd.match_one_layer gives the unit and its proven bound.`
      : `${intro} This activation has kinks, so its units are elementary functions with the right singularity; nsd.match_one_layer designs them and proves the bound.`;
    return;
  }
  draw(hosts[0], {
    title: "What kinds of units leave of the kernel, against the norm of the input", xLabel: "norm of the input", yLabel: "share that is missing", logY: true, xRange: [low, high],
    curves: found.deficits.map((y, i) => ({ name: `${i + 1} kind${i ? "s" : ""}`, kind: KINDS[i], x: found.norms, y: y.map((v) => Math.max(v, 1e-16)) })),
  });
  const x = Array.from({ length: 161 }, (_, i) => (i - 80) / 25);
  const values = x.map(found.units);
  draw(hosts[1], {
    title: "The units at the middle norm", xLabel: "u = w·x / |x|", yLabel: "value",
    curves: found.pivots.map((_, j) => ({ name: `ψ${"₁₂₃₄"[j]}`, kind: ["twin", "other", "scaled", "plain"][j], x, y: values.map((v) => v[j]) })),
  });
  const worst = found.deficits.map((d) => Math.max(...d));
  words.textContent = `${intro} On norms ${short(low)} to ${short(high)} the kernels differ by at most ${worst.map((w, i) => `${short(w)} (${i + 1} kind${i ? "s" : ""})`).join(", ")} of sqrt(k(x, x) k(y, y)), in every dimension and at every angle: the share of the diagonal that is missing bounds the whole kernel.`;
}
