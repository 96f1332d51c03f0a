// What is chosen, and who has to know of it.

const data = JSON.parse(document.getElementById("data").textContent);
data.unpacked = [];
const layers = data.layers.map((packed) => new Layer(packed, data));
const input = (name) => document.getElementById(name);
const state = { layer: layers[0], head: 0, token: data.firstToken, slot: 0, side: "projV", from: data.answer ? "answer" : "token", label: 0 };
const charts = {};

const range = ([first, last]) => (first === last ? `${first}` : `${first}–${last}`);
const named = ([first, last]) => {
  const quoted = (token) => JSON.stringify(text.name(token)).slice(1, -1).trim() || "space";
  return first === last ? `token ${first} “${quoted(first)}”` : `tokens ${range([first, last])}`;
};
const slotOrToken = ([column]) => {
  const { slots, exact, reach } = state.layer;
  if (column < slots) return `slot ${column}`;
  if (column < slots + exact.length) return `${named([exact[column - slots], exact[column - slots]])} itself`;
  const by = column - slots - exact.length - reach;
  return by === 0 ? "the token itself" : `the token ${Math.abs(by)} ${by < 0 ? "before" : "after"} it`;
};
const mean = (rows, columns) => (rows[0] === rows[1] && columns[0] === columns[1] ? "" : "mean ");

const text = new Text(data.pieces, {
  choose: (token) => choose({ token, from: "token" }),
  describe: ({ dataset }, value) => {
    const token = named([Number(dataset.first), Number(dataset.last)]);
    if (state.from === "answer") return `${token}: ${value} of the score of ${data.answer.labels[state.label]}`;
    return `${token}: ${value} in token ${state.token}, layer ${state.layer.packed.number}, head ${state.head}`;
  },
});

const pick = (map, rows, columns) => {
  const values = new Float64Array(rows.length * columns.length);
  rows.forEach((row, i) => columns.forEach((column, j) => (values[i * columns.length + j] = map.values[row * map.columns + column])));
  return new Matrix(values, rows.length, columns.length);
};
const all = (cells) => cells.map((_, i) => i);
const firsts = (cells) => cells.map(([first]) => first);

const tokens = new Axis(data.tokens, data.block, MOST_CELLS);
const slots = (count) => new Axis(count, 1, Infinity);
const firstWithSlots = layers.find((layer) => layer.slots) ?? layers[0];

const kinds = {
  tokens: {
    x: tokens,
    y: tokens,
    compute: (rows, columns) => state.layer.tokenMap(state.head, rows, columns),
    describe: (rows, columns, value) => `${named(rows)} takes ${mean(rows, columns)}${value} of ${named(columns)}`,
    choose: ({ row }) => choose({ token: row, from: "token" }),
  },
  slots: {
    x: slots(firstWithSlots.columnsOfWeights),
    y: tokens,
    compute: async (rows, columns) => pick(await state.layer.weights(state.head, rows), all(rows), firsts(columns)),
    describe: (rows, columns, value) => `${named(rows)} attends ${mean(rows, columns)}${value} to ${slotOrToken(columns)}`,
    choose: ({ row, column }) => choose({ token: row, slot: Math.min(column, state.layer.slots - 1) }),
  },
  projection: {
    x: tokens,
    y: slots(firstWithSlots.slots),
    compute: async (rows, columns) => pick(await state.layer.projection(state.side, state.head, columns), firsts(rows), all(columns)),
    describe: (rows, columns, value) => `slot ${rows[0]} reads ${mean(rows, columns)}${value} of ${named(columns)}`,
    choose: ({ row }) => choose({ slot: row }),
  },
};

const profile = {
  async embed(item) {
    await Bokeh.embed.embed_item(item, document.querySelector("#profile .plot"));
    const model = (part) => Bokeh.documents.at(-1).get_model_by_name(`profile${part}`);
    Object.assign(this, { plot: model(""), k: model("-k"), v: model("-v"), lines: { k: model("-line-k"), v: model("-line-v") } });
    const follow = (from, to) => () => to.setv({ start: from.start, end: from.end });
    const own = model("-x"), map = charts.projection.ranges.x;
    for (const end of ["start", "end"]) {
      map.properties[end].change.connect(follow(map, own));
      own.properties[end].change.connect(follow(own, map));
    }
  },

  async draw() {
    const { layer, head, slot } = state, { blocks } = layer;
    for (const [side, line] of [["projK", this.k], ["projV", this.v]]) {
      const matrix = await layer.projection(side, head, blocks);
      const y = matrix.values.slice(slot * matrix.columns, (slot + 1) * matrix.columns);
      const x = Float64Array.from(blocks, ([block]) => Math.min((block + 0.5) * data.block, data.tokens));
      line.data = { x, y };
    }
    input("profile-slot").textContent = slot;
  },

  paint() {
    theme.apply(this.plot);
    for (const [side, color] of [["k", "warm"], ["v", "cool"]]) this.lines[side].glyph.line_color = theme.color(color);
  },
};

async function highlight() {
  const { layer, head, token, from, label } = state, block = Math.floor(token / data.block);
  const relevance = data.answer?.relevance[label];
  if (from === "answer") return text.highlight(relevance, "answer");
  const of = `layer ${layer.packed.number}, head ${head}, token ${token}`;
  if (!layer.hasTokenMap) return text.highlight(new Float64Array(data.tokens), of);
  const row = await layer.tokenMap(head, [[block, block + 1]], layer.blocks);
  if (state.layer !== layer || state.head !== head || state.token !== token || state.from !== from) return; // chosen meanwhile
  text.highlight(Float64Array.from({ length: data.tokens }, (_, i) => row.values[Math.floor(i / data.block)]), of);
}

// The passages that added most to the answer or took most from it; one is chosen by its strongest token.
function rankPassages() {
  const passages = data.answer.passages[state.label];
  input("passages-label").textContent = data.answer.labels[state.label];
  input("no-passages").hidden = passages.length > 0;
  input("passages").replaceChildren(...passages.map(({ added, strongest, text: shown }) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const [amount, words] = [document.createElement("span"), document.createElement("span")];
    amount.className = "added";
    amount.textContent = `${added > 0 ? "+" : ""}${shortNumber(added)}`;
    words.textContent = shown;
    button.type = "button";
    button.classList.toggle("lowers", added < 0);
    button.append(amount, words);
    button.addEventListener("click", () => {
      choose({ token: strongest, from: "answer" });
      text.box.scrollIntoView({ block: "nearest" });
    });
    item.append(button);
    return item;
  }));
}

function choose(changes, follow = true) {
  Object.assign(state, changes);
  const { layer } = state;
  state.slot = Math.max(0, Math.min(state.slot, layer.slots - 1));
  for (const name of ["head", "token", "slot", "label"]) if (input(name)) input(name).value = state[name];
  input("layer").value = layers.indexOf(layer);
  for (const group of ["from", "side"])
    for (const option of document.getElementsByName(group)) option.checked = option.value === state[group];
  for (const part of document.querySelectorAll("[data-needs]"))
    part.hidden = { map: !layer.hasTokenMap, slots: layer.slots === 0, projection: !layer.packed.projV.length, answer: state.from !== "answer", token: state.from !== "token" }[part.dataset.needs];
  text.mark(state.token, follow);
  const inside = "layer" in changes || "head" in changes;
  if (inside) drawAll();
  if ("label" in changes) rankPassages();
  if ("side" in changes) charts.projection?.draw();
  if ("slot" in changes && !inside && layer.packed.projV.length) profile.draw();
  for (const [name, marks] of [["tokens", [state.token, null]], ["slots", [state.token, state.slot]], ["projection", [state.slot, state.token]]])
    charts[name]?.mark(...marks);
  if (!inside) highlight();
}

function drawAll() {
  const { layer } = state;
  if (layer.hasTokenMap) charts.tokens?.redraw();
  if (layer.slots) {
    charts.slots.setAxis("x", slots(layer.columnsOfWeights));
    charts.slots.redraw();
  }
  if (layer.packed.projV.length) {
    charts.projection.setAxis("y", slots(layer.slots));
    charts.projection.redraw();
    profile.draw();
  }
  highlight();
}

function listen() {
  const number = (name, act) => input(name)?.addEventListener("change", ({ target }) => {
    const value = Math.min(Math.max(Math.round(Number(target.value)) || 0, 0), Number(target.max || Infinity));
    act(value);
  });
  number("layer", (value) => choose({ layer: layers[value] }));
  number("head", (head) => choose({ head }));
  number("token", (token) => choose({ token, from: "token" }));
  number("slot", (slot) => choose({ slot }));
  number("label", (label) => choose({ label, from: "answer" }));
  for (const group of ["from", "side"])
    for (const option of document.getElementsByName(group))
      option.addEventListener("change", () => choose({ [group]: option.value }));
}

function paint() {
  for (const chart of Object.values(charts)) {
    theme.apply(chart.plot);
    if (chart.shown) chart.color();
  }
  if (profile.plot) profile.paint();
}

async function start() {
  Bokeh.set_log_level("warn");
  for (const [name, kind] of Object.entries(kinds))
    if (data.figures[name]) {
      charts[name] = new Chart(name, kind);
      await charts[name].embed(data.figures[name], kind.x, kind.y);
    }
  if (data.figures.profile) await profile.embed(data.figures.profile);
  paint();
  theme.media.addEventListener("change", paint);
  listen();
  choose({ layer: state.layer });
  if (data.answer) rankPassages();
  document.documentElement.dataset.ready = "yes";
}

start();
