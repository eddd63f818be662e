// The lines of Python and of the command that compute what is on the screen.

import { normRange } from "./model.js";
import { pythonName } from "./twins.js";

/** @param {ReturnType<typeof import("./model.js").build>} model */
export function pythonLines(model) {
  const { state, deq, mixture, tau0, activation } = model;
  const k = state.classes;
  const lines = ["import numpy as np", "import notsodeep as nsd", ""];
  if (activation.custom) lines.push(...customLines(activation));
  lines.push(`deq = nsd.DEQ(${pythonName(activation)}, sigma_a2=${deq.sigma_a2}, sigma_b2=${deq.sigma_b2}${deq.readout === "activation" ? "" : `, readout="${deq.readout}"`})`);
  lines.push(`means = np.zeros((${k}, ${state.p}))`, `means[range(${k}), range(${k})] = ${mixture.mean}`);
  lines.push(`mixture = nsd.GaussianMixture(means, [${mixture.variances.join(", ")}], [${mixture.counts.map((c) => c / state.n).join(", ")}])`);
  lines.push(`tau0 = ${tau0}`, `centred = deq.centred(tau0)`, "");
  lines.push(`print(nsd.coefficients(deq, tau0, kernel="${state.kernel}"))`);
  lines.push(`law = nsd.spectral_law(deq, mixture, n=${state.n}, kernel="${state.kernel}", refined=False)`, "print(law.support, [spike.value for spike in law.spikes])");
  lines.push(`print(nsd.predict_learning(centred, mixture, n=${state.n}, kernel="${state.kernel}", ridge=${10 ** state.ridge}, refined=False).accuracy)`);
  const range = activation.homogeneous ? "" : `, norms=(${normRange(tau0).join(", ")}), kinds=${state.kinds}`;
  lines.push(`print(nsd.match_one_layer(deq, kernel="${state.kernel}"${range}))`);
  if (model.designs.length && state.kernel === "ck") {
    lines.push(`twin = nsd.ENN([${model.designs[0].python.join(", ")}])`, `X, y = mixture.sample(${Math.min(state.n, 2000)}, seed=0)`);
    lines.push(`print(nsd.equivalents.relative_spectral_error(nsd.ck(centred, X), nsd.ck(twin, X)))`);
  }
  return lines;
}

function customLines(activation) {
  const kinks = activation.kinks.length ? `, kinks=(${activation.kinks.join(", ")},)` : "";
  return ["import torch", `phi = nsd.Activation.from_callable(lambda x: ${activation.python}${kinks})`, ""];
}

/** @param {ReturnType<typeof import("./model.js").build>} model */
export function shellLines(model) {
  const { state, deq, tau0, activation } = model;
  if (deq.readout !== "activation") return ["# what the readout sees is an option of Python; the command's DEQs read their activations"];
  if (activation.custom) return ["# a formula of one's own is for Python; the command knows the built-in activations"];
  const options = `--sigma-a2 ${deq.sigma_a2} --sigma-b2 ${deq.sigma_b2} --kernel ${state.kernel}`;
  const norms = activation.homogeneous ? "" : ` --norms ${normRange(tau0).join(" ")}`;
  return [`notsodeep match ${activation.name} ${options}${norms}`];
}
