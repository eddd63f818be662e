// The panel on the one-layer twin: what a few kinds of units leave of the kernel, and what the units look like.

import { draw, short } from "./chart.js";
import { layerOf, normRange } from "./model.js";
import { ANGLES } from "./thresholds.js";

const KINDS = ["other", "plain", "scaled", "twin"];
const UNITS = ["twin", "other", "scaled", "plain"];
const counted = (i) => `${i + 1} kind${i ? "s" : ""}`;
const worsts = (lists) => lists.map((list, i) => `${short(Math.max(...list))} (${counted(i)})`).join(", ");

/** @param {ReturnType<typeof import("./model.js").build>} model */
export function drawOneLayer(model) {
  const found = layerOf(model);
  const hosts = ["fig-onelayer", "fig-units"].map((id) => document.getElementById(id));
  const words = document.getElementById("say-onelayer");
  document.getElementById("kinds").closest(".slider").hidden = !found;
  if (found) return void (found.bent ? drawBent(found.bent, hosts, words) : drawSmooth(model, found.smooth, hosts, words));
  hosts.forEach((host) => host.replaceChildren());
  words.textContent =
    "A single hidden layer stands for this DEQ too. Its activation has kinks and sees the scale of its input, so the units are elementary functions with the right singularity: nsd.match_one_layer designs them and proves the bound.";
}

function drawBent({ errors, units }, hosts, words) {
  draw(hosts[0], {
    title: "Distance of the one-layer kernel from that of the DEQ, against the angle", xLabel: "angle between the inputs", yLabel: "distance / diagonal", logY: true, xRange: [0, 180],
    yRange: [1e-7, 1], xFormat: (v) => `${short(v)}°`,
    curves: errors.map((y, i) => ({ name: counted(i), kind: KINDS[i], x: ANGLES, y: y.map((v) => Math.max(v, 1e-9)) })),
  });
  const x = Array.from({ length: 161 }, (_, i) => (i - 80) / 25);
  draw(hosts[1], {
    title: "The units of the layer", xLabel: "u = w·x / |x|", yLabel: "value / |x|",
    curves: units.map((unit, j) => ({ name: nameOf(unit), kind: UNITS[j], x, y: x.map(unit.value) })),
  });
  const gates = units.some((unit) => unit.gated) ? " A gate is a slope φ′(w·x − t|x|) times a linear unit v·x." : "";
  words.textContent = `A single hidden layer of ordinary units φ(w·x − t|x|) with thresholds in proportion to the norm, for the DEQ as it is and for every norm.${gates} The kernels differ by at most ${worsts(errors)} of |x||y| k(1). Shares here are by least squares; nsd.match_one_layer takes more thresholds, to 10⁻⁴ or what you ask, and proves the bound.`;
}

function nameOf({ threshold, gated, share }) {
  const part = `${(100 * share).toFixed(0)} %`;
  if (threshold === null) return `w·x, ${part}`;
  return `${gated ? "gate" : "unit"}, t = ${short(threshold)}, ${part}`;
}

function drawSmooth({ tau0 }, found, hosts, words) {
  const [low, high] = normRange(tau0);
  draw(hosts[0], {
    title: "What kinds of units leave of the kernel, against the norm of the input", xLabel: "norm of the input", yLabel: "share that is missing", logY: true, xRange: [low, high],
    curves: found.deficits.map((y, i) => ({ name: counted(i), kind: KINDS[i], x: found.norms, y: y.map((v) => Math.max(v, 1e-16)) })),
  });
  const x = Array.from({ length: 161 }, (_, i) => (i - 80) / 25);
  const values = x.map(found.units);
  draw(hosts[1], {
    title: "The units at the middle norm", xLabel: "u = w·x / |x|", yLabel: "value",
    curves: found.pivots.map((_, j) => ({ name: `ψ${"₁₂₃₄"[j]}`, kind: UNITS[j], x, y: values.map((v) => v[j]) })),
  });
  words.textContent = `A single hidden layer of units ψ(w·x/|x|; |x|) that see the norm of the input, for the DEQ as it is. On norms ${short(low)} to ${short(high)} the kernels differ by at most ${worsts(found.deficits)} of sqrt(k(x, x) k(y, y)), in every dimension and at every angle: the share of the diagonal that is missing bounds the whole kernel.`;
}
