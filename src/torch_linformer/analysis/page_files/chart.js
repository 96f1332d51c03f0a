// A heat map: what it shows follows the zoom, a readout follows mouse, touch and arrow keys.

const MOST_CELLS = 192; // of tokens along an axis: beyond that a cell is hardly wider than a pixel
const CLIPPED = 0.002; // share of the cells beyond the ends of the colors

const shortNumber = (value) => {
  if (value === 0) return "0";
  const size = Math.abs(value), digits = value.toPrecision(3);
  return (size < 1e-4 || size >= 1e5 ? value.toExponential(2) : String(Number(digits))).replace("-", "−");
};

// `count` things along an axis, packed in blocks of `block`, of which at most `most` cells are made.
class Axis {
  constructor(count, block, most) {
    Object.assign(this, { count, block, most, blocks: Math.ceil(count / block) });
  }

  cells({ start, end }) {
    const [from, to] = [Math.min(start, end) / this.block, Math.max(start, end) / this.block];
    const first = Math.floor(from + 1e-6), last = Math.min(Math.ceil(to - 1e-6), this.blocks);
    const step = Math.max(1, Math.ceil((last - first) / this.most)), cells = [];
    // Aligned, so that cells stay where they are while one moves along.
    for (let at = Math.floor(first / step) * step; at < last; at += step)
      cells.push([at, Math.min(at + step, this.blocks)]);
    return { cells, start: cells[0][0] * this.block, size: step * this.block };
  }
}

class Chart {
  // compute: of cells of rows and columns, a Matrix; describe: of first and last thing on both axes and a value, a
  // sentence; choose: what a click does with the middle of a cell.
  constructor(name, { compute, describe, choose }) {
    Object.assign(this, { name, compute, describe, choose, cell: null, turn: 0 });
    this.box = document.getElementById(name);
    this.readout = document.getElementById(`${name}-readout`);
  }

  async embed(item, x, y) {
    await Bokeh.embed.embed_item(item, this.box.querySelector(".plot"));
    const named = (part) => Bokeh.documents.at(-1).get_model_by_name(this.name + part);
    for (const part of ["", "source", "mapper", "bar", "row", "column"])
      this[part || "plot"] = named(part && `-${part}`);
    this.ranges = { x: named("-x"), y: named("-y") };
    this.Image = this.source.data.image[0].constructor;
    this.axes = { x, y };
    for (const range of Object.values(this.ranges))
      for (const end of ["start", "end"]) range.properties[end].change.connect(() => this.redraw());
    this.plot.on_event("mousemove", ({ x, y }) => this.point(x, y));
    this.plot.on_event("tap", ({ x, y }) => this.point(x, y) && this.choose(this.middle()));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  // Another number of things on an axis, all of them in view.
  setAxis(name, axis) {
    if (axis.count === this.axes[name].count) return;
    this.axes[name] = axis;
    const [start, end] = name === "y" ? [axis.count, 0] : [0, axis.count];
    this.ranges[name].setv({ bounds: [0, axis.count], start, end, reset_start: start, reset_end: end });
  }

  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  async draw() {
    const turn = ++this.turn;
    const y = this.axes.y.cells(this.ranges.y), x = this.axes.x.cells(this.ranges.x);
    const map = await this.compute(y.cells, x.cells);
    if (turn !== this.turn) return; // something else is asked for by now
    this.shown = { y, x, map };
    this.drawn = turn;
    const image = new this.Image(map.values, [map.rows, map.columns]);
    this.source.data = {
      image: [image], x: [x.start], y: [y.start], dw: [x.size * map.columns], dh: [y.size * map.rows],
    };
    this.color();
    if (this.cell) this.show(Math.min(this.cell.row, map.rows - 1), Math.min(this.cell.column, map.columns - 1));
  }

  color() {
    const { values } = this.shown.map, signed = values.some((value) => value < 0);
    const sorted = Float64Array.from(values, signed ? Math.abs : Number).sort();
    const at = (share) => sorted[Math.round((sorted.length - 1) * share)];
    const high = at(1 - CLIPPED) || at(1) || 1, low = signed ? -high : at(CLIPPED);
    this.mapper.setv({ palette: theme.palette(signed), low: low < high ? low : 0, high });
  }

  point(x, y) {
    if (!this.shown) return false;
    const { map } = this.shown;
    const row = Math.floor((y - this.shown.y.start) / this.shown.y.size);
    const column = Math.floor((x - this.shown.x.start) / this.shown.x.size);
    if (row < 0 || column < 0 || row >= map.rows || column >= map.columns) return false;
    this.show(row, column);
    return true;
  }

  show(row, column) {
    const { map } = this.shown;
    this.cell = { row, column };
    const value = map.values[row * map.columns + column];
    const [rows, columns] = [this.span("y", row), this.span("x", column)];
    this.readout.textContent = this.describe(rows, columns, shortNumber(value));
  }

  // First and last thing of a cell.
  span(axis, cell) {
    const { start, size } = this.shown[axis];
    return [start + cell * size, Math.min(start + (cell + 1) * size, this.axes[axis].count) - 1];
  }

  middle() {
    const half = ([first, last]) => Math.floor((first + last) / 2);
    return { row: half(this.span("y", this.cell.row)), column: half(this.span("x", this.cell.column)) };
  }

  // The chosen row and column, null for none.
  mark(row, column) {
    for (const [line, at] of [["row", row], ["column", column]])
      this[line].setv({ visible: at !== null, location: at === null ? 0 : at + 0.5 });
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.ctrlKey || event.altKey || event.metaKey || !this.shown) return;
    if (moves[event.key]) this.move(...moves[event.key].map((by) => by * (event.shiftKey ? 10 : 1)));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.zoom(Infinity);
    else if ((event.key === "Enter" || event.key === " ") && this.cell) this.choose(this.middle());
    else return;
    event.preventDefault();
  }

  move(down, right) {
    const { map } = this.shown;
    if (!this.cell) return this.show(0, 0);
    const to = { y: this.cell.row + down, x: this.cell.column + right }, most = { y: map.rows, x: map.columns };
    for (const axis of ["y", "x"]) {
      const beyond = to[axis] < 0 ? to[axis] : Math.max(0, to[axis] - most[axis] + 1);
      if (beyond) this.shift(axis, beyond * this.shown[axis].size);
      to[axis] = Math.min(Math.max(to[axis], 0), most[axis] - 1);
    }
    this.show(to.y, to.x);
  }

  shift(axis, by) {
    const range = this.ranges[axis], { count } = this.axes[axis];
    const low = Math.min(range.start, range.end), high = Math.max(range.start, range.end);
    const moved = Math.min(Math.max(by, -low), count - high);
    range.setv({ start: range.start + moved, end: range.end + moved });
  }

  zoom(factor) {
    const at = this.cell ? this.middle() : null;
    for (const [axis, thing] of [["y", "row"], ["x", "column"]]) {
      const range = this.ranges[axis], { count } = this.axes[axis];
      const width = Math.min(Math.max(Math.abs(range.end - range.start) * factor, Math.min(4, count)), count);
      const middle = at ? at[thing] + 0.5 : (range.start + range.end) / 2;
      const low = Math.min(Math.max(middle - width / 2, 0), count - width);
      range.setv(range.start > range.end ? { start: low + width, end: low } : { start: low, end: low + width });
    }
  }
}
