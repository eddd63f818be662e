// Complex numbers as pairs [re, im], and small matrices of them: enough for resolvents of a few classes.

/** @typedef {[number, number]} C */

export const add = (a, b) => [a[0] + b[0], a[1] + b[1]];
export const sub = (a, b) => [a[0] - b[0], a[1] - b[1]];
export const mul = (a, b) => [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]];
export const scale = (a, r) => [a[0] * r, a[1] * r];
export const conj = (a) => [a[0], -a[1]];
export const size = (a) => Math.hypot(a[0], a[1]);
export const real = (r) => [r, 0];
export const exp = (a) => [Math.exp(a[0]) * Math.cos(a[1]), Math.exp(a[0]) * Math.sin(a[1])];

/** 1/a. @param {C} a @returns {C} */
export function inv(a) {
  const square = a[0] * a[0] + a[1] * a[1];
  return [a[0] / square, -a[1] / square];
}

/** @param {number} rows @param {number} columns @param {(i: number, j: number) => C} entry */
export const matrix = (rows, columns, entry) => Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => entry(i, j)));

export const product = (a, b) => matrix(a.length, b[0].length, (i, j) => a[i].reduce((sum, v, k) => add(sum, mul(v, b[k][j])), [0, 0]));
export const transposed = (a) => matrix(a[0].length, a.length, (i, j) => a[j][i]);

/** The trace of a times b. */
export const traceOf = (a, b) => a.reduce((sum, row, i) => row.reduce((s, v, k) => add(s, mul(v, b[k][i])), sum), [0, 0]);

/**
 * The solution of a x = b (columns of b) by elimination with pivoting.
 * @param {C[][]} a
 * @param {C[][]} b
 * @returns {C[][]}
 */
export function solve(a, b) {
  const n = a.length;
  const rows = a.map((row, i) => [...row, ...b[i]]);
  for (let k = 0; k < n; k++) {
    let pivot = k;
    for (let i = k + 1; i < n; i++) if (size(rows[i][k]) > size(rows[pivot][k])) pivot = i;
    [rows[k], rows[pivot]] = [rows[pivot], rows[k]];
    const lead = inv(rows[k][k]);
    for (let j = k; j < rows[k].length; j++) rows[k][j] = mul(rows[k][j], lead);
    for (let i = 0; i < n; i++) {
      if (i === k) continue;
      const factor = rows[i][k];
      for (let j = k; j < rows[k].length; j++) rows[i][j] = sub(rows[i][j], mul(factor, rows[k][j]));
    }
  }
  return rows.map((row) => row.slice(n));
}

export const identity = (n) => matrix(n, n, (i, j) => real(i === j ? 1 : 0));
