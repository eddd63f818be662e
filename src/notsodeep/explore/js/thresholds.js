// One layer for ReLU and its kind: units f(w.x - t |x|) of a few thresholds t, whose kernel is |x| |y| times a sum of
// profiles of the angle with shares mu_t >= 0 (docs/theory.md, section 13). For tangent kernels some units are gates,
// (v.x) f'(w.x - t |x|). The Python package finds the best shares and proves the bound; here are least squares.

import { implicitKernel, layer } from "./kernels.js";

const THRESHOLDS = Array.from({ length: 17 }, (_, i) => (i - 8) / 5);
export const ANGLES = Array.from({ length: 91 }, (_, i) => 2 * i);
const COSINES = ANGLES.map((t) => Math.cos((Math.PI * t) / 180));

/**
 * @typedef {object} Unit
 * @property {number | null} threshold null for a linear unit w.x
 * @property {boolean} gated
 * @property {number} share of the diagonal of the kernel
 * @property {(u: number) => number} value of a unit, as large as its share says
 *
 * @typedef {object} Bent
 * @property {number[][]} errors for J = 1 ... 4 units: what they leave at every angle, over the diagonal
 * @property {Unit[]} units the J that were asked for
 * @property {(s: number, t: number) => (cosine: number) => number} kernel of the layer with J kinds, at two norms
 */

/**
 * The one-layer twin of a homogeneous DEQ, for every norm.
 * @param {import("./kernels.js").Deq} deq
 * @param {"ck" | "ntk" | "ntk_frozen"} kernel
 * @param {number} kinds
 * @returns {Bent}
 */
export function thresholdLayer(deq, kernel, kinds) {
  const exact = implicitKernel(deq, 1, 1);
  const diagonal = exact(1)[kernel];
  const wanted = COSINES.map((rho) => exact(rho)[kernel] / diagonal);
  const columns = profiles(deq.activation).filter((c) => !c.gated || kernel !== "ck");
  const found = chosen(columns, wanted);
  const sum = ({ columns: own, shares }, rho) => own.reduce((total, c, j) => total + shares[j] * c.at(rho), 0);
  const errors = found.map((f) => COSINES.map((rho, i) => Math.abs(sum(f, rho) - wanted[i])));
  const best = found[kinds - 1];
  const units = best.columns.map(({ threshold, gated, value, own }, j) => {
    const size = Math.sqrt((best.shares[j] * diagonal) / own);
    return { threshold, gated, share: best.shares[j], value: (u) => size * value(u) };
  });
  return { errors, units, kernel: (s, t) => (rho) => s * t * diagonal * sum(best, rho) };
}

const LINEAR = { threshold: null, gated: false, value: (u) => u, own: 1, at: (rho) => rho, samples: COSINES };
const known = new Map();

/** The profiles of units and gates of every threshold over their diagonals, computed once per pair of slopes. */
function profiles(phi) {
  const [right, left] = [phi.slope(1), phi.slope(-1)];
  const key = `${right} ${left}`;
  if (!known.has(key)) known.set(key, [LINEAR, ...THRESHOLDS.flatMap((t) => pair(right, left, t))]);
  return known.get(key);
}

function pair(right, left, t) {
  const value = (x) => (x > t ? right : left) * (x - t);
  const slope = (x) => (x > t ? right : left);
  const map = layer({ value, slope, kinks: [t], feature: 1, parity: null, homogeneous: false, piecewiseLinear: true, lipschitz: Math.max(Math.abs(right), Math.abs(left)) }, 1, 1);
  const [own, gate] = [map.value(1), map.slope(1)];
  const both = [
    { threshold: t, gated: false, value, own, at: (rho) => map.value(rho) / own },
    { threshold: t, gated: true, value: slope, own: gate, at: (rho) => (rho * map.slope(rho)) / gate },
  ];
  return both.map((c) => ({ ...c, samples: COSINES.map(c.at) }));
}

/** For one to four units the columns with the least squared error: one is added, then each is exchanged while that helps. */
function chosen(columns, wanted) {
  const gram = columns.map((a) => columns.map((b) => dot(a.samples, b.samples)));
  const side = columns.map((a) => dot(a.samples, wanted));
  const gain = (set) => {
    const shares = solved(set.map((i) => set.map((j) => gram[i][j])), set.map((i) => side[i]));
    return shares.every((v) => v > 0) ? { gained: set.reduce((sum, i, k) => sum + shares[k] * side[i], 0), shares, set } : null;
  };
  const out = [];
  let best = { gained: 0, shares: [], set: [] };
  const improved = (kept) => {
    for (let i = 0; i < columns.length; i++) {
      const tried = kept.includes(i) ? null : gain([...kept, i]);
      if (tried && tried.gained > best.gained * (1 + 1e-13)) best = tried;
    }
  };
  for (let count = 1; count <= 4; count++) {
    improved(best.set);
    for (let before = 0; before < best.gained; ) {
      before = best.gained;
      for (const i of [...best.set]) improved(best.set.filter((j) => j !== i));
    }
    const order = best.set.map((_, k) => k).sort((a, b) => columns[best.set[a]].threshold - columns[best.set[b]].threshold);
    out.push({ columns: order.map((k) => columns[best.set[k]]), shares: order.map((k) => best.shares[k]) });
  }
  return out;
}

const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);

/** A small positive definite system, by elimination. */
function solved(matrix, right) {
  const rows = matrix.map((row, i) => [...row, right[i]]);
  rows.forEach((row, i) => {
    for (let k = i + 1; k < rows.length; k++) {
      const factor = rows[k][i] / row[i];
      for (let j = i; j <= rows.length; j++) rows[k][j] -= factor * row[j];
    }
  });
  const x = right.map(() => 0);
  for (let i = rows.length - 1; i >= 0; i--) x[i] = (rows[i].at(-1) - rows[i].reduce((sum, v, j) => (j > i && j < rows.length ? sum + v * x[j] : sum), 0)) / rows[i][i];
  return x;
}
