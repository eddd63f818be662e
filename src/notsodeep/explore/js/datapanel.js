// The panel for the reader's own data: a description, the suggested twin, and its distance on a sample.

import { short } from "./chart.js";
import { centred } from "./coefficients.js";
import { DataError, describe, readTable, standardised } from "./csv.js";
import { explicitKernel, implicitKernel } from "./kernels.js";
import { symmetricEigenvalues } from "./roots.js";
import { designs } from "./twins.js";

const SAMPLE = 24;

/** @param {() => ReturnType<typeof import("./model.js").build>} current */
export function setUpData(current) {
  const [drop, file, report] = ["drop", "file", "data-report"].map((id) => document.getElementById(id));
  const take = async (given) => {
    if (!given) return;
    report.replaceChildren(paragraph("reading …"));
    try {
      const table = readTable(await given.text());
      report.replaceChildren(...findings(table, current(), given.name));
    } catch (error) {
      if (!(error instanceof DataError)) throw error;
      report.replaceChildren(paragraph(`This file cannot be used: ${error.message}.`));
    }
  };
  file.addEventListener("change", () => take(file.files[0]));
  for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => (event.preventDefault(), drop.classList.add("over")));
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, (event) => (event.preventDefault(), drop.classList.remove("over")));
  drop.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
}

function paragraph(text) {
  const node = document.createElement("p");
  node.textContent = text;
  return node;
}

function findings(table, model, name) {
  const given = describe(table);
  const rows = standardised(table.rows);
  const now = describe({ rows, labels: table.labels });
  const out = [paragraph(`${name}: ${given.n} points of ${given.p} numbers${table.labels ? `, ${given.classes.length} classes` : ", no labels"}.`)];
  out.push(paragraph(`Norms ${short(given.lowest)} to ${short(given.highest)}, median ${short(given.median)}; τ₀ = ${short(given.tau0)}. Centred and scaled to τ₀ = 1: norms ${short(now.lowest)} to ${short(now.highest)}.`));
  if (table.labels) out.push(classTable(now));
  out.push(paragraph(suggestion(rows, model)));
  return out;
}

function classTable({ classes }) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const word of ["class", "points", "norm of its mean", "trace of its covariance"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = word;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const c of classes.slice(0, 20)) {
    const row = body.insertRow();
    for (const value of [c.name, c.count, short(c.mean), short(c.trace)]) row.insertCell().textContent = String(value);
  }
  return table;
}

/** The best of the small families at tau0 = 1 and the relative spectral distance of its conjugate kernel on a sample. */
function suggestion(rows, model) {
  const [best] = designs(model.deq, 1);
  if (!best) return "For this activation the page has no small twin; nsd.match_one_layer in Python has one, with a proven bound.";
  const step = Math.max(1, Math.floor(rows.length / SAMPLE));
  const sample = rows.filter((_, i) => i % step === 0).slice(0, SAMPLE);
  const deq = centred(model.deq, 1);
  const truth = kernelMatrix(sample, (sx, sy) => implicitKernel(deq, sx, sy));
  const twin = kernelMatrix(sample, (sx, sy) => explicitKernel(best, sx, sy));
  const distance = spectralNorm(difference(truth, twin)) / spectralNorm(truth);
  return `Suggested twin of the centred DEQ: ${best.words}. On ${sample.length} of your points its conjugate kernel is within ${short(distance)} of the DEQ's (relative, spectral norm).`;
}

function kernelMatrix(rows, kernel) {
  const squares = rows.map((row) => row.reduce((sum, v) => sum + v * v, 0));
  const out = rows.map(() => new Array(rows.length).fill(0));
  rows.forEach((x, i) => {
    for (let j = 0; j <= i; j++) {
      const inner = i === j ? squares[i] : x.reduce((sum, v, k) => sum + v * rows[j][k], 0);
      out[i][j] = out[j][i] = kernel(squares[i], squares[j])(inner).ck;
    }
  });
  return out;
}

const difference = (a, b) => a.map((row, i) => row.map((v, j) => v - b[i][j]));
const spectralNorm = (a) => Math.max(...symmetricEigenvalues(a).map(Math.abs));
