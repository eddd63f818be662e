// Small random networks of finite width, drawn in the page: a DEQ by fixed-point iteration, an explicit network layer by
// layer, and what their kernels are at a handful of angles.

/**
 * A seeded generator of standard normal numbers (mulberry32 and Box-Muller).
 * @param {number} seed
 * @returns {() => number}
 */
export function normals(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  let spare = null;
  return () => {
    if (spare !== null) {
      const out = spare;
      spare = null;
      return out;
    }
    const [radius, angle] = [Math.sqrt(-2 * Math.log(1 - uniform())), 2 * Math.PI * uniform()];
    spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  };
}

const matrix = (rows, columns, normal) => Float64Array.from({ length: rows * columns }, normal);

/** rows x columns times a vector of `columns` numbers. */
function times(weights, vector, rows) {
  const columns = vector.length;
  const out = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    let sum = 0;
    for (let j = 0, at = i * columns; j < columns; j++) sum += weights[at + j] * vector[j];
    out[i] = sum;
  }
  return out;
}

/**
 * Inputs of norm `norm` in the plane, at the given angles to the first axis.
 * @param {number[]} angles in degrees
 * @param {number} norm
 * @returns {Float64Array[]}
 */
export function fan(angles, norm) {
  return angles.map((t) => Float64Array.of(norm * Math.cos((Math.PI * t) / 180), norm * Math.sin((Math.PI * t) / 180)));
}

const dot = (x, y) => x.reduce((sum, v, i) => sum + v * y[i], 0);

/**
 * The equilibria of a random DEQ of the given width, and how far each step still moved.
 * @param {import("./kernels.js").Deq} deq
 * @param {Float64Array[]} inputs
 * @param {number} width
 * @param {number} seed
 * @returns {{features: Float64Array[], moves: number[]}}
 */
export function randomDeq(deq, inputs, width, seed) {
  const normal = normals(seed);
  const [a, b] = [matrix(width, width, normal), matrix(width, inputs[0].length, normal)];
  const drives = inputs.map((x) => times(b, x, width).map((v) => Math.sqrt(deq.sigma_b2) * v));
  let states = inputs.map(() => new Float64Array(width));
  const moves = [];
  const [gain, root] = [Math.sqrt(deq.sigma_a2), Math.sqrt(width)];
  for (let step = 0; step < 60 && (moves.at(-1) ?? 1) > 1e-9; step++) {
    const next = states.map((z, i) => times(a, z, width).map((v, k) => deq.activation.value(gain * v + drives[i][k]) / root));
    const change = Math.sqrt(next.reduce((sum, z, i) => sum + z.reduce((s, v, k) => s + (v - states[i][k]) ** 2, 0), 0));
    moves.push(change / Math.sqrt(next.reduce((sum, z) => sum + dot(z, z), 0)));
    states = next;
  }
  return { features: states, moves };
}

/**
 * A layer of random units of several kinds, one after the other, at inputs of one norm.
 * @param {(u: number) => number[]} values of every kind at u = w.x / |x|
 * @param {Float64Array[]} inputs
 * @param {number} width
 * @param {number} seed
 * @returns {Float64Array[]}
 */
export function randomLayer(values, inputs, width, seed) {
  const weights = matrix(width, inputs[0].length, normals(seed));
  const kinds = values(0).length;
  return inputs.map((x) => {
    const norm = Math.sqrt(dot(x, x));
    return times(weights, x, width).map((v, i) => Math.sqrt(kinds / width) * values(v / norm)[i % kinds]);
  });
}

/** Inner products with the first input: the conjugate kernel along the fan. @param {Float64Array[]} features */
export function kernelRow(features) {
  return features.map((z) => dot(features[0], z));
}
