// The matrices of the page: unpacked when first asked for, averaged over the cells that are shown.

const HALVES = new Float32Array(65536); // every 16-bit float
for (let bits = 0; bits < 65536; bits++) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  HALVES[bits] = bits & 32768 ? -size : size;
}

class Matrix {
  constructor(values, rows, columns) {
    this.values = values;
    this.rows = rows;
    this.columns = columns;
  }

  static async unpack({ shape, scale, data }) {
    const packed = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const [rows, columns] = shape;
    const count = rows * columns, values = new Float32Array(count);
    for (let i = 0; i < count; i++) values[i] = HALVES[bytes[i] | (bytes[count + i] << 8)] / scale;
    return new Matrix(values, rows, columns);
  }

  // Means over groups of rows, weighted by the tokens each row stands for.
  rowMeans(groups, tokensOf) {
    const means = new Float64Array(groups.length * this.columns);
    groups.forEach(([from, to], group) => {
      let tokens = 0;
      for (let row = from; row < to; row++) {
        tokens += tokensOf(row);
        for (let column = 0; column < this.columns; column++)
          means[group * this.columns + column] += tokensOf(row) * this.values[row * this.columns + column];
      }
      for (let column = 0; column < this.columns; column++) means[group * this.columns + column] /= tokens;
    });
    return new Matrix(means, groups.length, this.columns);
  }

  transposed() {
    const values = new Float64Array(this.rows * this.columns);
    for (let row = 0; row < this.rows; row++)
      for (let column = 0; column < this.columns; column++)
        values[column * this.rows + row] = this.values[row * this.columns + column];
    return new Matrix(values, this.columns, this.rows);
  }

  columnsUpTo(count) {
    if (count === this.columns) return this;
    const values = new Float32Array(this.rows * count);
    for (let row = 0; row < this.rows; row++)
      values.set(this.values.subarray(row * this.columns, row * this.columns + count), row * count);
    return new Matrix(values, this.rows, count);
  }

  timesTransposed(other) {
    const values = new Float64Array(this.rows * other.rows), inner = this.columns;
    for (let row = 0; row < this.rows; row++)
      for (let column = 0; column < other.rows; column++) {
        let sum = 0;
        for (let i = 0; i < inner; i++) sum += this.values[row * inner + i] * other.values[column * inner + i];
        values[row * other.rows + column] = sum;
      }
    return new Matrix(values, this.rows, other.rows);
  }
}

class Layer {
  constructor(packed, data) {
    const { ordinary, slots, exact, reach } = packed;
    Object.assign(this, { packed, data, ordinary, slots, exact, reach });
    this.tokensOf = (row) => Math.min(data.block, data.tokens - row * data.block);
  }

  get hasTokenMap() {
    return this.slots === 0 || this.packed.projV.length > 0;
  }

  // Every block of tokens as a cell of its own.
  get blocks() {
    return Array.from({ length: Math.ceil(this.data.tokens / this.data.block) }, (_, i) => [i, i + 1]);
  }

  async array(number) {
    return (this.data.unpacked[number] ??= await Matrix.unpack(this.data.arrays[number]));
  }

  // P̄: tokens by slots, and after the slots by the exact tokens and by the positions of the local window.
  async weights(head, rows) {
    return (await this.array(this.packed.weights[head])).rowMeans(rows, this.tokensOf);
  }

  // E or F, slots by positions.
  async projection(side, head, columns) {
    const matrix = await this.array(this.packed[side][head]);
    return matrix.rowMeans(columns, this.tokensOf).transposed();
  }

  get columnsOfWeights() {
    return this.slots + this.exact.length + (this.reach === null ? 0 : 2 * this.reach + 1);
  }

  // P̄ Fᵀ, the exact tokens and the local window: tokens by tokens.
  async tokenMap(head, rows, columns) {
    const weights = await this.weights(head, rows);
    if (this.ordinary) return weights.transposed().rowMeans(columns, this.tokensOf).transposed();
    const map = await this.bySlots(head, weights, columns);
    this.addExact(map, weights, columns);
    if (this.reach !== null) this.addWindow(map, await this.array(this.packed.near[head]), rows, columns);
    return map;
  }

  async bySlots(head, weights, columns) {
    if (!this.slots) return new Matrix(new Float64Array(weights.rows * columns.length), weights.rows, columns.length);
    const values = (await this.array(this.packed.projV[head])).rowMeans(columns, this.tokensOf);
    return weights.columnsUpTo(this.slots).timesTransposed(values);
  }

  // Tokens in some blocks.
  tokensIn([from, to]) {
    let sum = 0;
    for (let block = from; block < to; block++) sum += this.tokensOf(block);
    return sum;
  }

  addExact(map, weights, columns) {
    this.exact.forEach((token, number) => {
      const block = Math.floor(token / this.data.block);
      const column = columns.findIndex(([from, to]) => from <= block && block < to);
      if (column < 0) return; // not in view
      for (let row = 0; row < map.rows; row++)
        map.values[row * map.columns + column] +=
          weights.values[row * weights.columns + this.slots + number] / this.tokensIn(columns[column]);
    });
  }

  addWindow(map, near, rows, columns) {
    const farthest = (near.columns - 1) / 2;
    const widths = columns.map((cell) => this.tokensIn(cell));
    rows.forEach((cell, row) => {
      const height = this.tokensIn(cell);
      columns.forEach(([from, to], column) => {
        if (to <= cell[0] - farthest || from >= cell[1] + farthest) return;
        let sum = 0;
        for (let i = cell[0]; i < cell[1]; i++)
          for (let j = Math.max(from, i - farthest); j < Math.min(to, i + farthest + 1); j++)
            sum += near.values[i * near.columns + j - i + farthest] * this.tokensOf(i) * this.tokensOf(j);
        map.values[row * columns.length + column] += sum / (height * widths[column]);
      });
    });
  }
}
