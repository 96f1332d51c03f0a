// The document itself, its tokens highlighted by what something draws on.

class Text {
  // choose: what a click on a token does.
  constructor(pieces, { describe, choose }) {
    Object.assign(this, { describe, choose, chosen: null });
    this.box = document.getElementById("document");
    this.readout = document.getElementById("document-readout");
    this.hint = this.readout.textContent;
    this.spans = [];
    this.ofToken = [];
    for (const [text, first, last, special] of pieces) {
      const span = document.createElement("span");
      span.textContent = text;
      if (first >= 0) {
        span.dataset.first = first;
        span.dataset.last = last;
        if (special) span.className = "special";
        this.spans.push(span);
        for (let token = first; token <= last; token++) this.ofToken[token] = span;
      }
      this.box.append(span);
    }
    this.box.addEventListener("pointerover", ({ target }) => this.point(target));
    this.box.addEventListener("pointerleave", () => this.point(this.chosen));
    this.box.addEventListener("click", ({ target }) => target.dataset.first && choose(Number(target.dataset.first)));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  name(token) {
    return this.ofToken[token].textContent;
  }

  // values: one a token. A piece of several tokens has their sum. of: whose values they are.
  highlight(values, of) {
    this.of = of;
    this.values = this.spans.map(({ dataset }) => {
      let sum = 0;
      for (let token = Number(dataset.first); token <= Number(dataset.last); token++) sum += values[token];
      return sum;
    });
    const sizes = Float64Array.from(this.values, Math.abs).sort();
    const full = sizes[Math.floor((sizes.length - 1) * 0.995)] || sizes.at(-1) || 1;
    // Where every token adds something, the one that adds least stays blank.
    const none = this.values.some((value) => value < 0) || sizes[0] === full ? 0 : sizes[0];
    this.spans.forEach((span, number) => {
      const value = this.values[number];
      span.dataset.value = value;
      span.style.setProperty("--share", `${(Math.min((Math.abs(value) - none) / (full - none), 1) * 72).toFixed(1)}%`);
      span.classList.toggle("lowers", value < 0);
    });
    this.point(this.chosen);
  }

  mark(token, follow) {
    this.chosen?.classList.remove("chosen");
    this.chosen = this.ofToken[token];
    this.chosen.classList.add("chosen");
    if (follow) {
      const box = this.box.getBoundingClientRect(), span = this.chosen.getBoundingClientRect();
      if (span.top < box.top || span.bottom > box.bottom) this.box.scrollTop += span.top - box.top - box.height / 3;
    }
    this.point(this.chosen);
  }

  point(span) {
    const shown = span?.dataset?.first ? span : this.chosen;
    this.readout.textContent = shown ? this.describe(shown, shortNumber(Number(shown.dataset.value))) : this.hint;
  }

  key(event) {
    const number = this.chosen ? this.spans.indexOf(this.chosen) : -1;
    const last = this.spans.length - 1;
    const to = { ArrowRight: number + 1, ArrowLeft: number - 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.choose(Number(this.spans[Math.min(Math.max(to, 0), last)].dataset.first));
  }
}
