// The panel on learning: accuracy against samples, ridge or training time for DEQ, twin and plain network.

import { draw, short } from "./chart.js";
import { flow, linearProblem, predictRidge } from "./learning.js";
import { numbers } from "./model.js";

const WORDS = { deq: "DEQ", twin: "papers' twin", plain: "plain layer" };
const POINTS = { n: 13, ridge: 19, time: 13 };
const percent = (v) => `${(100 * v).toFixed(1)} %`;
let round = 0;

/** Points of the horizontal axis. */
function places(against, { n }) {
  const spread = (low, high, count) => Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));
  if (against === "n") return spread(Math.max(20, n / 16), 4 * n, POINTS.n).map(Math.round);
  return against === "ridge" ? spread(1e-4, 100, POINTS.ridge) : spread(1e-3, 100, POINTS.time);
}

/** A function that gives one accuracy after another, in the order of the places. */
function walk(four, model, against, x) {
  const tau02 = model.tau0 ** 2;
  const ridge = 10 ** model.state.ridge;
  const at = (mixture) => linearProblem(four, mixture, tau02);
  if (against === "time") {
    const step = flow(at(model.mixture), x);
    return () => step().accuracy;
  }
  let next = 0;
  if (against === "ridge") {
    const problem = at(model.mixture);
    return () => predictRidge(problem, x[next++]).accuracy;
  }
  const total = model.mixture.counts.reduce((a, b) => a + b, 0);
  return () => {
    const counts = model.mixture.counts.map((c) => (c * x[next]) / total);
    next += 1;
    return predictRidge(at({ ...model.mixture, counts }), ridge).accuracy;
  };
}

/**
 * Draws the curves, a few points per frame; a newer call ends an older one.
 * @param {ReturnType<typeof import("./model.js").build>} model
 */
export function drawLearning(model) {
  const own = ++round;
  const host = document.getElementById("panel-learning");
  const against = host.querySelector("input[name=against]:checked").value;
  const four = numbers(model);
  const x = places(against, model.state);
  const lines = Object.entries(four).filter(([, c]) => c).map(([kind, c]) => ({ name: WORDS[kind], kind, x, y: [], step: walk(c, model, against, x) }));
  host.dataset.ready = "no";
  const frame = () => {
    if (own !== round) return;
    const until = performance.now() + 30;
    while (performance.now() < until && lines.some((l) => l.y.length < x.length)) {
      const line = lines.find((l) => l.y.length < x.length);
      line.y.push(line.step());
    }
    show(model, against, lines);
    if (lines.some((l) => l.y.length < x.length)) requestAnimationFrame(frame);
    else finish(host, model, against, lines, four);
  };
  frame();
}

const LABELS = { n: "samples n", ridge: "ridge, relative to the mean diagonal", time: "training time, in units of 1 / mean diagonal" };

function show(model, against, lines) {
  const { state } = model;
  const here = { n: state.n, ridge: 10 ** state.ridge, time: null }[against];
  const curves = lines.filter((l) => l.y.length > 1).map(({ name, kind, x, y }) => ({ name, kind, x: x.slice(0, y.length), y }));
  draw(document.getElementById("fig-learning"), {
    title: `Predicted test accuracy against ${LABELS[against]}`, xLabel: LABELS[against], yLabel: "test accuracy", logX: true,
    xRange: [lines[0].x[0], lines[0].x.at(-1)], yFormat: (v) => percent(v), curves,
    marks: here === null ? [] : [{ x: here, kind: "deq", name: against === "n" ? `n = ${state.n}` : "your ridge" }],
  });
}

function finish(host, model, against, lines, four) {
  host.dataset.ready = "yes";
  const deq = lines.find((l) => l.kind === "deq");
  const best = deq.y.indexOf(Math.max(...deq.y));
  const { state } = model;
  const now = predictRidge(linearProblem(four.deq, model.mixture, model.tau0 ** 2), 10 ** state.ridge).accuracy;
  const seen = `With n = ${state.n} samples and this ridge the DEQ will reach ${percent(now)}; guessing gives ${percent(1 / state.classes)}.`;
  const more = { n: `Four times as many give ${percent(deq.y.at(-1))}.`, ridge: `The best ridge is near ${short(deq.x[best])}, with ${percent(deq.y[best])}.`, time: `The best time to stop is near ${short(deq.x[best])}, with ${percent(deq.y[best])}.` }[against];
  const blind = model.activation.parity === "odd" && state.spread > 0 ? " An odd activation does not see that the covariances differ." : "";
  const other = against === "n" ? comparison(model, four, lines[0].x[0]) : "";
  document.getElementById("say-learning").textContent = `${seen} ${more}${blind}${other} In the limit of high dimension, of the centred networks.`;
}

/**
 * Why the plain layer is ahead or behind at few samples. What the DEQ would reach with the plain layer's share of norms,
 * c2 / c1, says whether that is the reason.
 */
function comparison(model, four, n) {
  const total = model.mixture.counts.reduce((a, b) => a + b, 0);
  const mixture = { ...model.mixture, counts: model.mixture.counts.map((c) => (c * n) / total) };
  const reached = (c) => predictRidge(linearProblem(c, mixture, model.tau0 ** 2), 10 ** model.state.ridge).accuracy;
  const [deq, plain] = [reached(four.deq), reached(four.plain)];
  const shown = `At n = ${n} the plain layer reaches ${percent(plain)}, the DEQ ${percent(deq)}`;
  const same = "A twin has the kernel of its DEQ, no better one.";
  if (Math.abs(plain - deq) < 0.003) return ` ${shown}: on this mixture a DEQ learns nothing that a plain layer does not. ${same}`;
  const lent = reached({ ...four.deq, c2: (four.plain.c2 * four.deq.c1) / four.plain.c1 });
  const word = plain > deq ? "more" : "less";
  const norms = (lent - deq) / (plain - deq) > 0.5;
  const why = norms
    ? `its kernel sees ${word} of the norms beside the inner products (c₂/c₁ = ${short(four.plain.c2 / four.plain.c1)} against ${short(four.deq.c2 / four.deq.c1)}), and the norms tell these classes apart after few samples, the means only when n is near p`
    : `beside c₁ its diagonal is ${four.plain.diagonal / four.plain.c1 > four.deq.diagonal / four.deq.c1 ? "larger" : "smaller"}, which is a ridge that the network brings along`;
  return ` ${shown}: ${why}. ${same}`;
}
