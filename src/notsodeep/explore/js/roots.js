// Finding zeros: one safeguarded Newton iteration for functions of one variable, all roots of a polynomial, and the
// eigenvalues of a small symmetric matrix.

/**
 * The zero of an increasing function, by Newton steps that may not leave the bracket.
 * @param {(x: number) => [number, number]} f value and slope
 * @param {number} low
 * @param {number} high
 * @param {number} start
 * @returns {number}
 */
export function newton(f, low, high, start) {
  let x = start;
  for (let step = 0; step < 100; step++) {
    const [value, slope] = f(x);
    if (value <= 0) low = x;
    if (value >= 0) high = x;
    let next = x - value / slope;
    if (!(next >= low && next <= high)) next = 0.5 * (low + high);
    if (Math.abs(next - x) <= 4e-16 * Math.abs(next) + 1e-300) return next;
    x = next;
  }
  return x;
}

/**
 * The zero of f between low and high, where f has opposite signs (Brent's bracketing reduced to bisection and secants).
 * @param {(x: number) => number} f
 * @param {number} low
 * @param {number} high
 * @returns {number}
 */
export function bracketed(f, low, high) {
  let [a, b, fa, fb] = [low, high, f(low), f(high)];
  for (let step = 0; step < 200 && Math.abs(b - a) > 4e-16 * (Math.abs(a) + Math.abs(b)); step++) {
    let c = step % 3 === 2 ? 0.5 * (a + b) : (a * fb - b * fa) / (fb - fa);
    if (!(c > Math.min(a, b) && c < Math.max(a, b))) c = 0.5 * (a + b);
    const fc = f(c);
    if (fc === 0) return c;
    if (fc > 0 === fb > 0) {
      // the Illinois rule: an end that stays loses half its weight
      [b, fb, fa] = [c, fc, 0.5 * fa];
    } else {
      [a, fa] = [b, fb];
      [b, fb] = [c, fc];
    }
  }
  return 0.5 * (a + b);
}

/**
 * All roots of sum_k c_k x^k (c_0 first, the last not zero), by simultaneous iteration (Aberth), polished by Newton.
 * @param {number[]} coefficients
 * @returns {{re: number, im: number}[]}
 */
export function polynomialRoots(coefficients) {
  const degree = coefficients.length - 1;
  const lead = coefficients[degree];
  const c = coefficients.map((v) => v / lead);
  const radius = 1 + Math.max(...c.slice(0, degree).map((v, k) => Math.abs(v) ** (1 / (degree - k))));
  const z = Array.from({ length: degree }, (_, i) => {
    const angle = (2 * Math.PI * (i + 0.25)) / degree + 0.4;
    return { re: 0.5 * radius * Math.cos(angle), im: 0.5 * radius * Math.sin(angle) };
  });
  for (let step = 0; step < 200; step++) {
    let change = 0;
    for (let i = 0; i < degree; i++) change = Math.max(change, aberth(c, z, i));
    if (change < 1e-15) break;
  }
  return z;
}

function aberth(c, z, i) {
  let [pr, pi, dr, di] = [1, 0, 0, 0];
  const { re, im } = z[i];
  for (let k = c.length - 2; k >= 0; k--) {
    [dr, di] = [dr * re - di * im + pr, dr * im + di * re + pi];
    [pr, pi] = [pr * re - pi * im + c[k], pr * im + pi * re];
  }
  const size = dr * dr + di * di;
  if (size === 0 || (pr === 0 && pi === 0)) return 0;
  const [nr, ni] = [(pr * dr + pi * di) / size, (pi * dr - pr * di) / size];
  let [sr, si] = [0, 0];
  for (let j = 0; j < z.length; j++) {
    if (j === i) continue;
    const [a, b] = [re - z[j].re, im - z[j].im];
    const d = a * a + b * b || 1e-300;
    sr += a / d;
    si -= b / d;
  }
  const [er, ei] = [1 - (nr * sr - ni * si), -(nr * si + ni * sr)];
  const d = er * er + ei * ei || 1e-300;
  const [wr, wi] = [(nr * er + ni * ei) / d, (ni * er - nr * ei) / d];
  z[i] = { re: re - wr, im: im - wi };
  return Math.hypot(wr, wi) / Math.max(Math.hypot(re, im), 1e-300);
}

/**
 * Eigenvalues of a symmetric matrix in increasing order, by Jacobi rotations.
 * @param {number[][]} matrix
 * @returns {number[]}
 */
export function symmetricEigenvalues(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => row.slice());
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) off += a[i][j] ** 2;
    let all = off;
    for (let i = 0; i < n; i++) all += a[i][i] ** 2;
    if (off <= 1e-32 * all) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) if (a[p][q] !== 0) rotate(a, p, q);
  }
  return a.map((row, i) => row[i]).sort((x, y) => x - y);
}

function rotate(a, p, q) {
  const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
  const c = 1 / Math.hypot(t, 1);
  const s = t * c;
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[k][p], a[k][q]];
    [a[k][p], a[k][q]] = [c * x - s * y, s * x + c * y];
  }
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[p][k], a[q][k]];
    [a[p][k], a[q][k]] = [c * x - s * y, s * x + c * y];
  }
}
