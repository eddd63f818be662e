// What the reader has set, as a record, in the address bar and back. Anything damaged falls back to its default.

/**
 * @typedef {object} State
 * @property {string} activation a name of ACTIVATIONS, or "formula"
 * @property {string} formula
 * @property {number} fraction sigma_a2 as a fraction of its limit
 * @property {number} scale of the inputs
 * @property {"ck" | "ntk" | "ntk_frozen"} kernel
 * @property {"activation" | "pre-activation"} readout
 * @property {number} classes
 * @property {number} mean norm of the class means
 * @property {number} spread how much the variances of the classes differ, in units of 1/sqrt(p)
 * @property {number} p
 * @property {number} n
 * @property {number} ridge relative to the mean diagonal, as a power of ten
 * @property {number} kinds of the one-layer twin
 * @property {number} norm ratio of the second input's norm to the first's
 */

/** name -> [default, lowest, highest, step]; or a list of choices, the first the default */
export const FIELDS = {
  activation: null,
  formula: null,
  fraction: [0.8, 0.01, 0.99, 0.01],
  scale: [1, 0.1, 3, 0.05],
  kernel: ["ck", "ntk", "ntk_frozen"],
  readout: ["activation", "pre-activation"],
  classes: [2, 2, 6, 1],
  mean: [3, 0, 10, 0.1],
  spread: [8, 0, 20, 0.5],
  p: [1000, 50, 4000, 50],
  n: [800, 20, 8000, 20],
  ridge: [-2, -5, 1, 0.1],
  kinds: [2, 1, 4, 1],
  norm: [1, 0.25, 4, 0.05],
};

/** @param {string[]} activations @returns {State} */
export function defaults() {
  const out = { activation: "relu", formula: "x*tanh(softplus(x))" };
  for (const [name, field] of Object.entries(FIELDS)) if (field) out[name] = field[0];
  return /** @type {State} */ (out);
}

/**
 * @param {string} hash the part of the address after #
 * @param {string[]} activations names that exist
 * @returns {State}
 */
export function fromHash(hash, activations) {
  const state = defaults();
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [name, field] of Object.entries(FIELDS)) {
    const text = given.get(name);
    if (text === null) continue;
    if (name === "activation") {
      if (activations.includes(text)) state.activation = text;
    } else if (name === "formula") state.formula = text.slice(0, 200);
    else if (typeof field[0] === "string") {
      if (field.includes(text)) state[name] = text;
    } else if (text.trim() !== "" && Number.isFinite(Number(text))) {
      state[name] = Math.min(field[2], Math.max(field[1], Number(text)));
    }
  }
  return state;
}

/** Only what differs from the defaults. @param {State} state */
export function toHash(state) {
  const plain = defaults();
  const out = new URLSearchParams();
  for (const name of Object.keys(FIELDS)) {
    if (name === "formula" && state.activation !== "formula") continue;
    if (state[name] !== plain[name]) out.set(name, String(state[name]));
  }
  return out.toString();
}
