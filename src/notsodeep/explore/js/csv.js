// A file of the reader's own: read, checked, described. Clear words where it is not what is needed.

/** What is wrong with a file, in words. */
export class DataError extends Error {}

const MOST = 20e6; // characters

/**
 * @typedef {object} Table
 * @property {Float64Array[]} rows
 * @property {string[] | null} labels
 * @property {string[] | null} header
 */

/**
 * Reads numbers separated by commas, semicolons, tabs or blanks. A first line without numbers is a header; a last
 * column of words, or of few whole numbers under a header such as "label", holds the classes.
 * @param {string} text
 * @returns {Table}
 */
export function readTable(text) {
  if (text.length > MOST) throw new DataError(`the file has ${(text.length / 1e6).toFixed(0)} million characters; give a part of it, up to 20 million`);
  if (text.includes("\u0000")) throw new DataError("this is not a text file; save the data as CSV");
  const lines = text.replace(/^\uFEFF/, "").split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length === 0) throw new DataError("the file is empty");
  const separator = [",", ";", "\t"].find((s) => lines[0].includes(s)) ?? /\s+/;
  const cells = lines.map((line) => line.trim().split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
  const header = cells[0].every((cell) => !isNumber(cell)) && cells.length > 1 ? cells.shift() : null;
  const width = cells[0].length;
  const odd = cells.findIndex((row) => row.length !== width);
  if (odd >= 0) throw new DataError(`row ${odd + 1 + (header ? 1 : 0)} has ${cells[odd].length} cells, the first has ${width}`);
  const last = cells.map((row) => row[width - 1]);
  const labelled = width > 1 && (last.some((cell) => !isNumber(cell)) || namesClasses(header, last));
  const columns = labelled ? width - 1 : width;
  const rows = cells.map((row, i) => Float64Array.from(row.slice(0, columns), (cell, j) => number(cell, i + 1 + (header ? 1 : 0), j + 1)));
  if (rows.length < 4) throw new DataError(`${rows.length} rows are too few; at least 4 points are needed`);
  if (columns < 2) throw new DataError("points of one coordinate have no angles; at least two columns of numbers are needed");
  return { rows, labels: labelled ? last : null, header };
}

const isNumber = (cell) => cell !== "" && Number.isFinite(Number(cell));

function number(cell, row, column) {
  if (isNumber(cell)) return Number(cell);
  const what = cell === "" ? "is empty" : `holds "${cell.slice(0, 20)}"`;
  throw new DataError(`row ${row}, column ${column} ${what}; every cell but a last column of labels must be a number`);
}

function namesClasses(header, cells) {
  if (!header || !/^(label|class|target|y)/i.test(header.at(-1))) return false;
  return cells.every((cell) => Number.isInteger(Number(cell))) && new Set(cells).size <= 20;
}

/**
 * What the theory needs to know of a table: norms, tau0, the traces and means of the classes.
 * @param {Table} table
 */
export function describe({ rows, labels }) {
  const norms = rows.map((row) => Math.sqrt(row.reduce((sum, v) => sum + v * v, 0))).sort((a, b) => a - b);
  const tau0 = Math.sqrt(norms.reduce((sum, v) => sum + v * v, 0) / norms.length);
  if (tau0 === 0) throw new DataError("all points are zero");
  const names = labels ? [...new Set(labels)].sort() : ["all"];
  const p = rows[0].length;
  const classes = names.map((name) => {
    const own = labels ? rows.filter((_, i) => labels[i] === name) : rows;
    const mean = Float64Array.from({ length: p }, (_, j) => own.reduce((sum, row) => sum + row[j], 0) / own.length);
    const spread = own.reduce((sum, row) => sum + row.reduce((s, v, j) => s + (v - mean[j]) ** 2, 0), 0) / own.length;
    return { name, count: own.length, mean: Math.sqrt(mean.reduce((sum, v) => sum + v * v, 0)), trace: spread };
  });
  return { n: rows.length, p, tau0, lowest: norms[0], median: norms[norms.length >> 1], highest: norms.at(-1), classes };
}

/**
 * Centred, and scaled to mean squared norm one: what the papers do to data.
 * @param {Float64Array[]} rows
 * @returns {Float64Array[]}
 */
export function standardised(rows) {
  const p = rows[0].length;
  const mean = Float64Array.from({ length: p }, (_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
  const moved = rows.map((row) => row.map((v, j) => v - mean[j]));
  const size = Math.sqrt(moved.reduce((sum, row) => sum + row.reduce((s, v) => s + v * v, 0), 0) / rows.length);
  if (size === 0) throw new DataError("all points are equal");
  return moved.map((row) => row.map((v) => v / size));
}
