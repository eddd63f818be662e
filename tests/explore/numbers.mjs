// Runs the page's own modules on a list of questions from standard input: [{ask, ...}] -> answers, as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const home = pathToFileURL(`${process.argv[2]}/`);
const from = (name) => import(new URL(`${name}.js`, home));
const [{ ACTIVATIONS }, coefficients, formula, kernels, learning, { moments }, spectrum, twins, state, csv, onelayer, thresholds] = await Promise.all(
  ["activations", "coefficients", "formula", "kernels", "learning", "moments", "spectrum", "twins", "state", "csv", "onelayer", "thresholds"].map(from),
);

const deqOf = ({ activation, ...rest }) => ({ ...rest, activation: ACTIVATIONS[activation] });
const attempt = (f) => {
  try {
    return { value: f() };
  } catch (error) {
    return { error: error.constructor.name, message: error.message };
  }
};

const ANSWERS = {
  names: () => Object.keys(ACTIVATIONS),
  limits: () => Object.fromEntries(Object.entries(ACTIVATIONS).map(([name, phi]) => [name, coefficients.limit(phi)])),
  values: ({ activation, x }) => x.map((v) => [ACTIVATIONS[activation].value(v), ACTIVATIONS[activation].slope(v)]),
  moments: ({ activation, tau }) => moments(ACTIVATIONS[activation], tau),
  implicit: ({ deq, pairs }) => pairs.map(([sx, sy, dot]) => kernels.implicitKernel(deqOf(deq), sx, sy)(dot)),
  explicit: ({ activations, pairs }) => pairs.map(([sx, sy, dot]) => kernels.explicitKernel({ activations: activations.map((a) => ACTIVATIONS[a]) }, sx, sy)(dot)),
  coefficients: ({ deq, tau0, kernel }) => coefficients.implicitCoefficients(deqOf(deq), tau0, kernel),
  explicitCoefficients: ({ activations, tau0, kernel }) => coefficients.explicitCoefficients({ activations: activations.map((a) => ACTIVATIONS[a]) }, tau0, kernel),
  designs: ({ deq, tau0 }) => twins.designs(deqOf(deq), tau0).map((d) => ({ family: d.family, python: d.python, four: coefficients.explicitCoefficients(d, tau0, "ck") })),
  spectrum: ({ deq, kernel, mixture, at }) => {
    const tau02 = spectrum.squaredScale(mixture);
    const law = spectrum.spectralLaw(coefficients.implicitCoefficients(deqOf(deq), Math.sqrt(tau02), kernel), mixture, tau02);
    const points = law.support.flatMap(([low, high]) => at.map((u) => low + u * (high - low)));
    return { tau0: Math.sqrt(tau02), support: law.support, points, density: points.map(law.density), atom: law.atom, spikes: law.spikes };
  },
  learning: ({ deq, kernel, mixture, ridge, times }) => {
    const tau02 = spectrum.squaredScale(mixture);
    const problem = learning.linearProblem(coefficients.implicitCoefficients(deqOf(deq), Math.sqrt(tau02), kernel), mixture, tau02);
    const step = learning.flow(problem, (times ?? []).map((t) => t * problem.diagonal));
    return { tau0: Math.sqrt(tau02), ridge: learning.predictRidge(problem, ridge), flow: (times ?? []).map(() => step()) };
  },
  oneLayer: ({ deq, kernel, low, high, kinds, u }) => {
    const found = onelayer.oneLayer(deqOf(deq), kernel, low, high, kinds);
    const at = (cosines, s, t) => cosines.map(found.kernel(s, t));
    return found && { norms: found.norms, deficits: found.deficits, pivots: found.pivots, units: u.map(found.units), kernel: at([-0.7, 0.2, 1], low, high) };
  },
  thresholds: ({ deq, kernel, kinds, cosines, s, t, u }) => {
    const found = thresholds.thresholdLayer(deqOf(deq), kernel, kinds);
    const units = found.units.map(({ value, ...rest }) => ({ ...rest, values: u.map(value) }));
    return { units, errors: found.errors, kernel: cosines.map(found.kernel(s, t)) };
  },
  tooLong: ({ activation, q }) => {
    kernels.allow(-1);
    const answer = attempt(() => kernels.layer(ACTIVATIONS[activation], q, q).value(0));
    kernels.allow(Infinity);
    return answer;
  },
  formula: ({ text, x }) =>
    attempt(() => {
      const phi = formula.activationFrom(text);
      return { kinks: phi.kinks, parity: phi.parity, homogeneous: phi.homogeneous, lipschitz: phi.lipschitz, python: phi.python, piecewiseLinear: phi.piecewiseLinear, points: x.map((v) => [phi.value(v), phi.slope(v)]) };
    }),
  hash: ({ hash }) => {
    const read = state.fromHash(hash, [...Object.keys(ACTIVATIONS), "formula"]);
    return { read, again: state.fromHash(state.toHash(read), [...Object.keys(ACTIVATIONS), "formula"]) };
  },
  table: ({ text }) =>
    attempt(() => {
      const table = csv.readTable(text);
      return { rows: table.rows.map((row) => [...row]), labels: table.labels, header: table.header, about: csv.describe(table) };
    }),
};

const questions = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(questions.map((q) => ANSWERS[q.ask](q))));
