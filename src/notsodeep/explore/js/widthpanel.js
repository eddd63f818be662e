// The panel on finite width: random networks of growing width beside the exact kernel, and the equilibrium iteration.

import { draw, short } from "./chart.js";
import { fan, kernelRow, randomDeq, randomLayer } from "./finite.js";
import { implicitKernel, readOut } from "./kernels.js";
import { layerOf } from "./model.js";

const WIDTHS = [16, 32, 64, 128, 256, 512];
const ANGLES = [0, 20, 45, 70, 90, 120, 150, 180];
const DRAWS = 3;

/** @param {() => ReturnType<typeof import("./model.js").build>} current */
export function setUpWidth(current) {
  const [button, words] = ["draw", "say-width"].map((id) => document.getElementById(id));
  let seed = 1;
  button.addEventListener("click", () => {
    button.disabled = true;
    run(current(), seed, (text) => (words.textContent = text)).finally(() => (button.disabled = false));
    seed += 1;
  });
}

const pause = () => new Promise((done) => setTimeout(done));

async function run(model, seed, say) {
  const inputs = fan(ANGLES, model.tau0);
  const exact = implicitKernel(model.deq, model.tau0 ** 2, model.tau0 ** 2);
  const truth = ANGLES.map((t) => exact(model.tau0 ** 2 * Math.cos((Math.PI * t) / 180)).ck);
  const twin = layerOf(model, "ck");
  const products = kernelRow(inputs);
  const lines = [{ name: "DEQ", kind: "deq", x: [], y: [] }, ...(twin ? [{ name: "one-layer twin", kind: "twin", x: [], y: [] }] : [])];
  let moves = [];
  for (const width of WIDTHS) {
    say(`width ${width} …`);
    await pause();
    const errors = lines.map(() => 0);
    for (let k = 0; k < DRAWS; k++) {
      const found = randomDeq(model.deq, inputs, width, 1000 * seed + 10 * k + 1);
      if (k === 0) moves = found.moves;
      const seen = kernelRow(found.features).map((v, i) => readOut(model.deq, v, products[i]));
      errors[0] += distance(seen, truth) / DRAWS;
      if (twin) errors[1] += distance(kernelRow(randomLayer(twin.values, inputs, width, 1000 * seed + 10 * k + 2)), truth) / DRAWS;
    }
    lines.forEach((line, i) => (line.x.push(width), line.y.push(errors[i])));
    if (lines[0].x.length > 1) drawWidths(lines);
  }
  say(`mean of ${DRAWS} draws at each width; seed ${seed}`);
  await animate(moves);
}

const distance = (row, truth) => Math.sqrt(row.reduce((sum, v, i) => sum + (v - truth[i]) ** 2, 0) / truth.reduce((sum, v) => sum + v * v, 0));

function drawWidths(lines) {
  const [first, last] = [lines[0].x[0], lines[0].x.at(-1)];
  const slope = { name: "slope −1/2", kind: "plain", x: [first, last], y: [lines[0].y[0], lines[0].y[0] * Math.sqrt(first / last)] };
  draw(document.getElementById("fig-width"), {
    title: "Relative distance of random networks' kernels from the exact kernel, against width", xLabel: "width", yLabel: "relative distance", logX: true, logY: true, xFormat: short, curves: [...lines, slope],
  });
}

/** The iteration z <- phi(sigma_a A z + sigma_b B x)/sqrt(m), step by step; all at once where motion is not wanted. */
async function animate(moves) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const x = moves.map((_, i) => i + 1);
  for (let count = still ? moves.length : 2; count <= moves.length; count++) {
    draw(document.getElementById("fig-iteration"), {
      title: "The equilibrium iteration: how far each step still moves the state", xLabel: "step", yLabel: "relative move", logY: true, xRange: [1, moves.length], yRange: [Math.min(...moves), Math.max(...moves)],
      curves: [{ name: `DEQ of width ${WIDTHS.at(-1)}`, kind: "deq", x: x.slice(0, count), y: moves.slice(0, count) }],
    });
    if (!still) await new Promise((done) => setTimeout(done, 90));
  }
}
