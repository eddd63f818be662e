// The page: reads the controls, asks the model, draws. No mathematics here.

import { ACTIVATIONS } from "./activations.js";
import { draw, short } from "./chart.js";
import { limit } from "./coefficients.js";
import { FormulaError } from "./formula.js";
import { TooLong, allow } from "./kernels.js";
import { build, distanceOf, kernelCurves, numbers, spectra } from "./model.js";
import { FIELDS, defaults, fromHash, toHash } from "./state.js";
import { pythonLines, shellLines } from "./export.js";
import { setUpData } from "./datapanel.js";
import { setUpWidth } from "./widthpanel.js";
import { drawLearning } from "./learningpanel.js";
import { drawOneLayer } from "./onelayerpanel.js";

const $ = (id) => document.getElementById(id);
const KERNEL_WORDS = { ck: "conjugate kernel", ntk: "tangent kernel, all weights", ntk_frozen: "tangent kernel, inputs frozen" };
const names = [...Object.keys(ACTIVATIONS), "formula"];

let state = fromHash(location.hash, names);
let model = null;

function fillControls() {
  const select = $("activation");
  for (const name of names) select.append(new Option(name === "formula" ? "a formula of my own" : name.replace("_", " "), name));
  for (const [name, field] of Object.entries(FIELDS)) {
    if (!field || typeof field[0] === "string") continue;
    Object.assign($(name), { min: field[1], max: field[2], step: field[3] });
  }
}

function showControls() {
  for (const name of Object.keys(FIELDS)) $(name).value = state[name];
  $("own").hidden = state.activation !== "formula";
}

function showValues() {
  const s2a = model.deq.sigma_a2;
  const words = {
    fraction: `${s2a.toPrecision(3)} of ${limit(model.activation).toPrecision(3)}`, scale: short(state.scale), classes: state.classes,
    mean: short(state.mean), spread: short(state.spread), p: state.p, n: state.n, ridge: short(10 ** state.ridge), kinds: state.kinds, norm: short(state.norm),
  };
  for (const [name, text] of Object.entries(words)) {
    $(`${name}-value`).textContent = text;
    $(name).setAttribute("aria-valuetext", text);
  }
}

// ---- panels ----------------------------------------------------------------------------------------------------

function drawActivation() {
  const x = Array.from({ length: 241 }, (_, i) => (i - 120) / 30);
  const curve = (name, kind, phi) => ({ name, kind, x, y: x.map(phi.value) });
  const twin = model.designs[0];
  const layers = (twin?.activations ?? []).map((phi, i, all) => curve(all.length > 1 ? `papers' twin, layer ${i + 1}` : "papers' twin", i ? "other" : "twin", phi));
  const shifted = model.centred.activation;
  draw($("fig-activation"), {
    title: "The activation, its centred form, and the activations of the papers' twin", xLabel: "x", yLabel: "value",
    curves: [curve("φ", "plain", model.activation), curve("φ, centred", "deq", shifted), ...layers],
  });
  const shift = model.activation.value(0.5) - shifted.value(0.5);
  const centring = Math.abs(shift) < 1e-12 ? "φ needs no centring: its mean is zero." : `The theorems speak of the centred activation, φ − ${short(shift)}.`;
  const word = twin
    ? `The papers' twin: ${model.designs.map((d) => `${d.words}, whose conjugate kernel is within ${short(distanceOf(model, d))} of the centred DEQ's at norm ${short(model.tau0)}`).join("; or ")}.`
    : "None of the small families (hard tanh, leaky ReLU, the activation with a linear term) has these four numbers; nsd.match finds others.";
  $("say-activation").textContent = `The papers match a DEQ on a Gaussian mixture, where four numbers decide the conjugate kernel. ${centring} ${word}`;
}

function drawKernel() {
  const found = kernelCurves(model);
  const line = (name, kind, y) => ({ name, kind, x: found.angles, y });
  const twins = found.twin ? [line("one-layer twin", "twin", found.twin)] : [];
  const format = (v) => `${short(v)}°`;
  draw($("fig-kernel"), {
    title: `The ${KERNEL_WORDS[state.kernel]} against the angle between two inputs`, xLabel: "angle between the inputs", yLabel: "kernel", xFormat: format, xRange: [0, 180],
    curves: [line("DEQ", "deq", found.deq), ...twins, line("plain layer", "plain", found.plain), line(`plain × ${short(found.factor)}`, "scaled", found.scaled)],
  });
  const error = (y) => y.map((v, i) => Math.max(Math.abs(v - found.deq[i]), 1e-17));
  draw($("fig-difference"), {
    title: "Distance of each kernel from that of the DEQ", xLabel: "angle between the inputs", yLabel: "distance, logarithmic", logY: true, xFormat: format, xRange: [0, 180],
    curves: [...twins.map((t) => ({ ...t, y: error(t.y) })), line("plain layer", "plain", error(found.plain)), line("plain × best factor", "scaled", error(found.scaled))],
  });
  sayKernel(found, error);
}

function sayKernel(found, error) {
  const top = Math.max(...found.deq.map(Math.abs));
  const worst = (y) => Math.max(...error(y)) / top;
  $("say-kernel").textContent = `Angle 0 is a point with itself, 180 its opposite. Shown for inputs of norm ${short(model.tau0)} and ${short(state.norm * model.tau0)}.`;
  const plain = `plain layer with the DEQ's activation ${short(worst(found.plain))}, with its best factor ${short(worst(found.scaled))}`;
  const twin = found.twin ? `one-layer twin ${short(worst(found.twin))}, ` : "";
  $("say-difference").textContent = `Largest distance relative to the kernel's size: ${twin}${plain}.`;
}

const MEANINGS = [
  ["c1", "c₁", "inner products", "The slope of the kernel. It carries the class means, sets the width of the bulk of eigenvalues, and is what a linear method would see."],
  ["c2", "c₂", "norms", "How much the kernel sees of the lengths of points, hence of the traces of the covariances. Zero for odd activations."],
  ["c3", "c₃", "squared inner products", "How much it sees of the shapes of the covariances. Zero for odd activations: they are blind to classes that differ only in covariance."],
  ["diagonal", "diagonal", "a point with itself", "What exceeds c₁ τ₀² here is added to every eigenvalue: a ridge that the network brings along."],
];

function drawNumbers() {
  const four = numbers(model);
  const cell = (record, key, label) => `<td class="number" data-label="${label}">${record ? record[key].toFixed(8) : "–"}</td>`;
  const rows = MEANINGS.map(([key, sign, what, words]) => `<tr><th scope="row">${sign}<br><small>${what}</small></th>${cell(four.deq, key, "DEQ")}${cell(four.twin, key, "papers' twin")}${cell(four.plain, key, "plain")}<td>${words}</td></tr>`);
  $("numbers").innerHTML = `<thead><tr><th scope="col">number</th><th scope="col">DEQ</th><th scope="col">papers' twin</th><th scope="col">plain</th><th scope="col">what it does</th></tr></thead><tbody>${rows.join("")}</tbody>`;
}

function drawSpectrum() {
  const laws = spectra(model);
  const kinds = Object.entries(laws).filter(([, law]) => law);
  const curves = kinds.map(([kind, law]) => densityCurve(kind, law));
  const marks = kinds.flatMap(([kind, law]) => law.spikes.map((s) => ({ x: s.value, kind, name: kind === "deq" ? `${short(s.value)}${s.multiplicity > 1 ? ` ×${s.multiplicity}` : ""}` : "" })));
  const high = Math.max(...kinds.flatMap(([, law]) => [...law.support.map(([, b]) => b), ...law.spikes.map((s) => s.value)]));
  const top = Math.max(...curves[0].y.filter(Number.isFinite));
  draw($("fig-spectrum"), {
    title: "Predicted density of the eigenvalues, with isolated ones as vertical lines", xLabel: "eigenvalue", yLabel: "density", xRange: [0, 1.06 * high], yRange: [0, 1.15 * top], curves, marks,
  });
  const { spikes, atom } = laws.deq;
  const isolated = spikes.length ? `${spikes.reduce((s, v) => s + v.multiplicity, 0)} eigenvalue${spikes.length > 1 ? "s stand" : " stands"} apart from the bulk and know the classes` : "No eigenvalue stands apart: the kernel cannot tell the classes without labels";
  const mass = atom ? ` A share of ${short(100 * atom.mass)} % sits at ${short(atom.value)}, because there are more points than dimensions.` : "";
  $("say-spectrum").textContent = `For n = ${state.n} points in dimension ${state.p}, of the centred networks, without sampling. ${isolated}.${mass}`;
}

const NETWORK_WORDS = { deq: "DEQ", twin: "papers' twin", plain: "plain layer" };

function densityCurve(kind, law) {
  const [x, y] = [[], []];
  for (const [low, high] of law.support) {
    for (let i = 0; i <= 160; i++) {
      const u = low + 0.5 * (high - low) * (1 - Math.cos((Math.PI * i) / 160)); // dense at the edges, where the root is steep
      x.push(u);
      y.push(i === 0 || i === 160 ? 0 : law.density(u));
    }
    x.push(high);
    y.push(NaN);
  }
  return { name: NETWORK_WORDS[kind], kind, x, y, area: kind === "deq" };
}

function drawExport() {
  $("python").textContent = pythonLines(model).join("\n");
  $("shell").textContent = shellLines(model).join("\n");
}

// ---- updates ---------------------------------------------------------------------------------------------------

/** What is drawn, with the figures and the words that belong to it. */
const PANELS = [
  [() => drawOneLayer(model), "onelayer", "units"], [drawKernel, "kernel", "difference"], [drawActivation, "activation"], [drawNumbers], [drawSpectrum, "spectrum"],
  [() => drawLearning(model), "learning"], [drawExport],
];
const PATIENCE = 1000; // milliseconds a panel may take before it gives up: the page answers in between
let pending = 0;

/** Draws a panel, or says why not; a figure that belongs to other settings does not stay. */
function drawPanel([show, ...parts]) {
  allow(PATIENCE);
  try {
    show();
  } catch (error) {
    if (!(error instanceof TooLong)) throw error;
    for (const part of parts) {
      $(`fig-${part}`).replaceChildren();
      const words = $(`say-${part}`);
      if (words) words.textContent = "These settings take a page too long. Lower the scale of the inputs or the norm of the second input; the lines of Python below have no such limit.";
    }
  } finally {
    allow(Infinity);
  }
}

/** One panel after another; a newer setting ends the round. */
function update() {
  const round = ++pending;
  try {
    allow(PATIENCE);
    model = build(state);
    $("formula-help").textContent = state.activation === "formula" ? `slope at most ${short(model.activation.lipschitz)}${model.activation.kinks.length ? `, kinks at ${model.activation.kinks.join(", ")}` : ""}` : "";
    $("formula-help").classList.remove("wrong");
  } catch (error) {
    if (!(error instanceof FormulaError)) throw error;
    $("formula-help").textContent = error.message;
    $("formula-help").classList.add("wrong");
    return;
  }
  showValues();
  history.replaceState(null, "", `#${toHash(state)}`);
  const step = (i) => {
    if (round !== pending || i >= PANELS.length) return finish(round);
    drawPanel(PANELS[i]);
    requestAnimationFrame(() => step(i + 1));
  };
  document.body.dataset.ready = "no";
  step(0);
}

function finish(round) {
  if (round === pending) document.body.dataset.ready = "yes";
}

function changed(event) {
  const { name, value } = event.target;
  if (name === "against") return void drawLearning(model);
  if (!(name in FIELDS)) return;
  const given = FIELDS[name] && typeof FIELDS[name][0] !== "string" ? Number(value) : value;
  if (given === state[name]) return; // browsers tell twice
  state = { ...state, [name]: given };
  $("own").hidden = state.activation !== "formula";
  update();
}

fillControls();
showControls();
update();
for (const kind of ["input", "change"]) document.addEventListener(kind, changed);
$("reset").addEventListener("click", () => {
  state = defaults();
  showControls();
  update();
});
window.addEventListener("hashchange", () => {
  state = fromHash(location.hash, names);
  showControls();
  update();
});
$("controls").addEventListener("submit", (event) => event.preventDefault());
setUpData(() => model);
setUpWidth(() => model);
setUpExport();

function setUpExport() {
  const copy = (from) => async () => {
    await navigator.clipboard?.writeText($(from).textContent).then(
      () => ($("say-export").textContent = "copied"),
      () => ($("say-export").textContent = "your browser does not let the page copy; select the lines instead"),
    );
  };
  $("copy-python").addEventListener("click", copy("python"));
  $("copy-shell").addEventListener("click", copy("shell"));
  $("save-svg").addEventListener("click", saveFigures);
}

/** Every figure on the page as a file of its own, with the colours it has on screen. */
function saveFigures() {
  for (const svg of document.querySelectorAll(".figure svg.chart")) {
    const copy = svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    inlineColours(svg, copy);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.download = `notsodeep-${svg.closest("section").id.replace("panel-", "")}-${svg.parentElement.id.replace("fig-", "")}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  $("say-export").textContent = "saved";
}

function inlineColours(from, to) {
  const wanted = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];
  const [sources, copies] = [from.querySelectorAll("*"), to.querySelectorAll("*")];
  sources.forEach((source, i) => {
    const style = getComputedStyle(source);
    for (const name of wanted) copies[i].style.setProperty(name, style.getPropertyValue(name));
  });
}
