// The page: builds the controls that Python lists, asks for the numbers of each section, and draws them.

const setup = JSON.parse(document.getElementById("setup").textContent);
const controls = new Map(setup.controls.map((control) => [control.name, control]));
const defaults = () => Object.fromEntries(setup.controls.map((control) => [control.name, control.start]));
const moves = (control) => control.stops.length > 1;
let state = fromAddress();

// ---- settings --------------------------------------------------------------------------------------------------

/** The settings in the address; anything damaged falls back to its default. */
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = defaults();
  for (const [name, text] of given) if (controls.get(name)?.stops.some(([stop]) => stop === text)) found[name] = text;
  return found;
}

function toAddress() {
  const changed = setup.controls.filter(({ name, start }) => state[name] !== start);
  history.replaceState(null, "", `#${new URLSearchParams(changed.map(({ name }) => [name, state[name]]))}`);
}

function buildControls() {
  const form = document.getElementById("controls");
  for (const [group, members] of Map.groupBy(setup.controls.filter(moves), (control) => control.group)) {
    form.append(html("fieldset", {}, html("legend", {}, group), ...members.map(buildControl)));
  }
  const reset = html("button", { type: "button", id: "reset" }, "Back to the start");
  form.append(html("p", {}, reset));
  reset.addEventListener("click", () => change(defaults()));
  form.addEventListener("submit", (event) => event.preventDefault());
  const moved = ({ target }) => {
    const control = controls.get(target.name);
    change({ ...state, [control.name]: control.choice ? target.value : control.stops[Number(target.value)][0] });
  };
  for (const kind of ["input", "change"]) form.addEventListener(kind, moved); // some report one of them alone
}

function buildControl({ name, label, choice, stops, help }) {
  const title = html("label", { for: name }, label);
  const note = help ? [html("p", { class: "help", id: `${name}-help` }, help)] : [];
  const described = help ? { "aria-describedby": `${name}-help` } : {};
  if (choice) return html("div", {}, title, html("select", { id: name, name, ...described }, ...stops.map(([stop, word]) => new Option(word, stop))), ...note);
  const range = html("input", { id: name, name, type: "range", min: 0, max: stops.length - 1, step: 1, ...described });
  return html("div", { class: "slider" }, title, html("output", { for: name, id: `${name}-value` }), range, ...note);
}

function showControls() {
  for (const { name, choice, stops } of setup.controls.filter(moves)) {
    const node = document.getElementById(name);
    const at = stops.findIndex(([stop]) => stop === state[name]);
    node.value = choice ? state[name] : at;
    if (choice) continue;
    document.getElementById(`${name}-value`).textContent = stops[at][1];
    node.setAttribute("aria-valuetext", stops[at][1]);
  }
}

function change(next) {
  state = next;
  showControls();
  toAddress();
  panels.forEach((panel) => panel.refresh());
}

// ---- sections --------------------------------------------------------------------------------------------------

/** One section: at most one question is under way, and what is drawn belongs to the latest settings. */
class Panel {
  constructor({ name, title, needs, wide }) {
    Object.assign(this, { name, needs, asked: null, busy: false, document: null });
    this.content = html("div", { class: "content", id: `content-${name}` });
    this.coming = html("span", { class: "coming", role: "status" });
    this.host = html("section", { id: `panel-${name}`, "aria-labelledby": `h-${name}` }, html("h2", { id: `h-${name}` }, title), this.coming, this.content);
    this.host.classList.toggle("wide", wide);
    document.getElementById("main").append(this.host);
  }

  get query() {
    return [`section=${this.name}`, ...this.needs.map((need) => `${need}=${state[need]}`)].join("&");
  }

  async refresh() {
    if (this.busy || this.query === this.asked) return;
    this.busy = true;
    this.host.dataset.asked = "waiting";
    const clock = this.tellTime();
    let found = null;
    while (this.query !== this.asked) {
      this.asked = this.query;
      found = await numbers(this.asked);
    }
    clearInterval(clock);
    this.busy = false;
    this.host.setAttribute("aria-busy", "false");
    this.coming.textContent = "";
    this.document = found;
    this.draw();
    this.host.dataset.asked = "answered";
  }

  /** Says that an answer is coming, once it takes long enough to notice. */
  tellTime() {
    const started = Date.now();
    return setInterval(() => {
      const seconds = Math.floor((Date.now() - started) / 1000);
      this.host.setAttribute("aria-busy", "true");
      this.coming.textContent = seconds > 2 ? `computing, ${seconds} s` : "computing";
    }, 250);
  }

  draw() {
    const { message, error, charts = [], table, code } = this.document;
    const hosts = charts.map(() => html("div", { class: "figure" }));
    const parts = [html("p", { class: error ? "message wrong" : "message", "aria-live": "polite" }, error ?? message)];
    if (charts.length) parts.push(html("div", { class: charts.length > 1 ? "pair" : "" }, ...hosts));
    if (table) parts.push(drawTable(table));
    if (code) parts.push(...drawCode(code));
    this.content.replaceChildren(...parts);
    charts.forEach((chart, i) => drawChart(hosts[i], chart));
  }
}

async function numbers(query) {
  if (setup.stored) return setup.stored[query] ?? { error: "These numbers are not stored here." };
  try {
    return await (await fetch(`numbers?${query}`)).json();
  } catch {
    return { error: "The server does not answer. Start it again with the command “notsodeep explore”; each start has its own address." };
  }
}

function drawTable({ head, rows }) {
  const titles = html("tr", {}, ...head.map((word) => html("th", { scope: "col" }, word)));
  const body = rows.map(([first, ...cells]) =>
    html("tr", {}, html("th", { scope: "row" }, first), ...cells.map((cell, i) => html("td", { "data-label": head[i + 1] }, cell))));
  return html("div", { class: "scroll" }, html("table", {}, html("thead", {}, titles), html("tbody", {}, ...body)));
}

function drawCode(code) {
  const button = html("button", { type: "button", id: "copy" }, "Copy");
  const said = html("span", { role: "status" });
  button.addEventListener("click", () =>
    navigator.clipboard.writeText(code).then(
      () => (said.textContent = " copied"),
      () => (said.textContent = " your browser does not let the page copy; select the lines instead"),
    ));
  return [html("pre", { tabindex: 0, "aria-label": "Python lines" }, html("code", { id: "python" }, code)), button, said];
}

// ---- start -----------------------------------------------------------------------------------------------------

const fixed = setup.controls.filter((control) => !moves(control)).map((control) => control.label);
document.getElementById("origin").textContent = setup.stored
  ? `Numbers of the Python package notsodeep ${setup.version}, stored for these stops. The command “notsodeep explore” has all stops and moves these, too: ${fixed.join("; ")}.`
  : `Numbers of the Python package notsodeep ${setup.version}, computed on this machine while you watch.`;
buildControls();
showControls();
const panels = setup.sections.map((section) => new Panel(section));
panels.forEach((panel) => panel.refresh());
window.addEventListener("hashchange", () => change(fromAddress()));
let width = innerWidth;
window.addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  panels.forEach((panel) => panel.document && panel.draw());
});
