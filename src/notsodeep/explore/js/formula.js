// A formula of one's own, such as x*tanh(softplus(x)): parsed by a small grammar into a tree, evaluated with derivatives,
// and written as a line of PyTorch. Nothing a reader types is ever run as code.

import { erf, normalCdf, sigmoid, softplus } from "./activations.js";

/**
 * @typedef {[number, number]} Dual a value and its derivative
 * @typedef {((x: Dual) => Dual) & {python: string, constant: boolean}} Node a function, its source, whether x is in it
 */

/** A mistake in a formula, with the place where it was noticed. */
export class FormulaError extends Error {}

const LONGEST = 200;
const DEEPEST = 40;

const chain = (f, df) => ([v, d]) => [f(v), df(v) * d];
const gauss = (x) => (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x);

/** @type {Record<string, (x: Dual) => Dual>} */
const FUNCTIONS = {
  exp: chain(Math.exp, Math.exp),
  log: chain(Math.log, (x) => 1 / x),
  log1p: chain(Math.log1p, (x) => 1 / (1 + x)),
  expm1: chain(Math.expm1, Math.exp),
  sqrt: chain(Math.sqrt, (x) => 0.5 / Math.sqrt(x)),
  abs: chain(Math.abs, (x) => (x > 0 ? 1 : -1)),
  sign: chain((x) => (x > 0 ? 1 : -1), () => 0),
  relu: chain((x) => Math.max(x, 0), (x) => (x > 0 ? 1 : 0)),
  sin: chain(Math.sin, Math.cos),
  cos: chain(Math.cos, (x) => -Math.sin(x)),
  tan: chain(Math.tan, (x) => 1 + Math.tan(x) ** 2),
  tanh: chain(Math.tanh, (x) => 1 - Math.tanh(x) ** 2),
  sinh: chain(Math.sinh, Math.cosh),
  cosh: chain(Math.cosh, Math.sinh),
  atan: chain(Math.atan, (x) => 1 / (1 + x * x)),
  arctan: chain(Math.atan, (x) => 1 / (1 + x * x)),
  erf: chain(erf, gauss),
  sigmoid: chain(sigmoid, (x) => sigmoid(x) * sigmoid(-x)),
  softplus: chain(softplus, sigmoid),
  gelu: chain((x) => x * normalCdf(x), (x) => normalCdf(x) + (x * gauss(x / Math.SQRT2)) / (2 * Math.SQRT2)),
};

/** @type {Record<string, (x: Dual, y: Dual) => Dual>} */
const PAIRS = {
  max: (x, y) => (x[0] >= y[0] ? x : y),
  min: (x, y) => (x[0] <= y[0] ? x : y),
  pow: power,
};

const TORCH = { arctan: "torch.atan", softplus: "torch.nn.functional.softplus", gelu: "torch.nn.functional.gelu" };

/** A node of the tree. */
const node = (f, python, ...parts) => Object.assign(f, { python, constant: parts.every((part) => part.constant) });

/** The source of a call. Functions of torch take tensors alone, so that a call without x becomes its number. */
function source(name, f, [a, b]) {
  if (a.constant && (b?.constant ?? true)) return String(f([0, 1])[0]);
  if (name === "pow") return `(${a.python}) ** (${b.python})`;
  if (!b) return `${TORCH[name] ?? `torch.${name}`}(${a.python})`;
  const [tensor, bound] = a.constant ? [b, a] : [a, b];
  if (bound.constant) return `torch.clamp(${tensor.python}, ${name === "max" ? "min" : "max"}=${bound.python})`;
  return `torch.${name}imum(${a.python}, ${b.python})`;
}

const CONSTANTS = { pi: Math.PI, e: Math.E };

function power([x, dx], [y, dy]) {
  const value = x ** y;
  if (dy === 0) return [value, y === 0 ? 0 : y * x ** (y - 1) * dx];
  return [value, value * (dy * Math.log(x) + (y * dx) / x)];
}

/**
 * @param {string} text
 * @returns {string[]} numbers, names and signs
 */
function tokens(text) {
  if (text.length > LONGEST) throw new FormulaError(`a formula has at most ${LONGEST} characters`);
  const found = [];
  const pattern = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|[-+*/^(),]))/y;
  while (pattern.lastIndex < text.trimEnd().length) {
    const start = pattern.lastIndex;
    const match = pattern.exec(text);
    if (!match) throw new FormulaError(`"${text[start].trim() || text[start + 1]}" is not part of a formula`);
    found.push(match[1] ?? match[2] ?? match[3]);
  }
  return found;
}

/**
 * The formula as a function from (x, 1) to (value, derivative).
 * @param {string} text
 * @returns {Node}
 */
export function parse(text) {
  const list = tokens(text);
  let at = 0;
  let depth = 0;
  const peek = () => list[at];
  const take = (expected) => {
    if (list[at] !== expected) throw new FormulaError(`"${expected}" is missing${list[at] ? ` before "${list[at]}"` : " at the end"}`);
    at++;
  };
  const sum = () => {
    if (++depth > DEEPEST) throw new FormulaError("too many brackets inside one another");
    let left = product();
    while (peek() === "+" || peek() === "-") left = list[at++] === "+" ? plus(left, product()) : minus(left, product());
    depth--;
    return left;
  };
  const product = () => {
    let left = signed();
    while (peek() === "*" || peek() === "/") left = list[at++] === "*" ? times(left, signed()) : over(left, signed());
    return left;
  };
  const signed = () => {
    if (peek() === "-") {
      at++;
      const f = signed();
      return node((x) => f(x).map((v) => -v), `-${f.python}`, f);
    }
    if (peek() === "+") at++;
    return raised();
  };
  const raised = () => {
    const base = atom();
    if (peek() !== "^" && peek() !== "**") return base;
    at++;
    const exponent = signed();
    return node((x) => power(base(x), exponent(x)), `${base.python}**${exponent.python}`, base, exponent);
  };
  const atom = () => {
    const token = list[at++];
    if (token === undefined) throw new FormulaError("the formula ends too early");
    if (/^[\d.]/.test(token)) return node(() => [Number(token), 0], String(Number(token)));
    if (token === "(") {
      const inside = sum();
      take(")");
      return node((x) => inside(x), `(${inside.python})`, inside);
    }
    if (token === "x") return node((x) => x, "x", { constant: false });
    if (Object.hasOwn(CONSTANTS, token)) return node(() => [CONSTANTS[token], 0], `torch.${token}`);
    if (Object.hasOwn(FUNCTIONS, token)) return call(token, FUNCTIONS[token], 1);
    if (Object.hasOwn(PAIRS, token)) return call(token, PAIRS[token], 2);
    throw new FormulaError(`"${token}" is not known; x, numbers, pi, e and ${[...Object.keys(FUNCTIONS), ...Object.keys(PAIRS)].join(", ")} are`);
  };
  const call = (name, f, count) => {
    take("(");
    const parts = [sum()];
    if (count === 2) {
      take(",");
      parts.push(sum());
    }
    take(")");
    const value = count === 1 ? (x) => f(parts[0](x)) : (x) => f(parts[0](x), parts[1](x));
    return node(value, source(name, value, parts), ...parts);
  };
  const root = sum();
  if (at < list.length) throw new FormulaError(`"${list[at]}" was not expected`);
  return root;
}

// every part is evaluated once: a long sum must not double its work with every term
const joined = (sign, value) => (f, g) => node((x) => value(f(x), g(x)), `${f.python} ${sign} ${g.python}`, f, g);
const plus = joined("+", ([a, da], [b, db]) => [a + b, da + db]);
const minus = joined("-", ([a, da], [b, db]) => [a - b, da - db]);
const times = joined("*", ([a, da], [b, db]) => [a * b, da * b + a * db]);
const over = joined("/", ([a, da], [b, db]) => [a / b, (da * b - a * db) / (b * b)]);

/**
 * An activation from a formula: kinks and the Lipschitz constant are looked for on a grid, and what cannot be an
 * activation is refused with a word.
 * @param {string} text
 * @returns {import("./activations.js").Activation}
 */
export function activationFrom(text) {
  const f = parse(text);
  const at = (x) => f([x, 1]);
  const value = (x) => at(x)[0];
  const slope = (x) => at(x)[1];
  const grid = Array.from({ length: 4801 }, (_, i) => (i - 2400) / 100);
  const bad = grid.find((x) => !Number.isFinite(value(x)) || !Number.isFinite(slope(x + 1e-7)));
  if (bad !== undefined) throw new FormulaError(`the formula has no finite value at x = ${bad}`);
  const lipschitz = Math.max(...grid.map((x) => Math.abs(slope(x + 1e-7))));
  if (lipschitz > 1e3) throw new FormulaError(`the formula is too steep: a slope of ${lipschitz.toPrecision(3)} was met`);
  if (lipschitz === 0) throw new FormulaError("the formula is constant");
  const places = grid.slice(1).map((b, i) => between(slope, grid[i], b, lipschitz)).filter((x) => x !== null && Math.abs(100 * x - Math.round(100 * x)) > 1e-4);
  const kinks = [...new Set([...grid, ...places])].filter((x) => bends(value, slope, x, lipschitz)).sort((a, b) => a - b);
  const jump = kinks.find((x) => Math.abs(value(x + 1e-7) - value(x - 1e-7)) > 1e-4 * lipschitz);
  if (jump !== undefined) throw new FormulaError(`the formula jumps at x = ${jump}; an activation here must be continuous`);
  return {
    name: text, formula: text, python: f.python, value, slope, lipschitz, kinks, feature: 0.5, parity: parityOf(value),
    homogeneous: kinks.every((c) => c === 0) && [0.3, 1, 7].every((x) => [1, -1].every((s) => near(value(2 * s * x), 2 * value(s * x)))),
    piecewiseLinear: grid.slice(1).every((x, i) => kinks.some((c) => Math.abs(c - x) < 0.02) || near(slope(x + 1e-7), slope(grid[i] + 1e-7))),
  };
}

/** Where the slope changes most between two points of the grid, by bisection to rounding; null where it hardly changes. */
function between(slope, a, b, size) {
  const change = (x, y) => Math.abs(slope(x) - slope(y));
  if (change(a, b) < 1e-3 * size) return null;
  for (let step = 0; step < 52; step++) {
    const middle = 0.5 * (a + b);
    if (change(a, middle) > change(middle, b)) b = middle;
    else a = middle;
  }
  return 0.5 * (a + b);
}

function bends(value, slope, x, size) {
  const step = 1e-6;
  return Math.abs(slope(x + step) - slope(x - step)) > 1e-3 * size || Math.abs(value(x + step) - value(x - step)) > 1e-3 * size;
}

const near = (a, b) => Math.abs(a - b) <= 1e-12 * Math.max(1, Math.abs(a), Math.abs(b));

function parityOf(value) {
  const points = [0.1, 0.37, 0.9, 1.7, 3.1];
  if (points.every((x) => near(value(-x), -value(x)))) return "odd";
  return points.every((x) => near(value(-x), value(x))) ? "even" : null;
}
