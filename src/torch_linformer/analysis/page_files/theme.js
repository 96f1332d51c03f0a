// The colors of the page for what is drawn by Bokeh: light or dark, as the reader's system is.

const theme = {
  media: matchMedia("(prefers-color-scheme: dark)"),

  color: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),

  // 256 colors from the paper to a dark (or, on dark paper, a light) blue; with signs from orange over the paper.
  palette(signed) {
    const cool = ["paper", "cool", "cool-end"].map(theme.color), warm = ["warm-end", "warm"].map(theme.color);
    const stops = (signed ? [...warm, ...cool] : cool).map(theme.channels);
    return Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1), from = Math.min(Math.floor(at), stops.length - 2);
      const mixed = stops[from].map((low, c) => Math.round(low + (at - from) * (stops[from + 1][c] - low)));
      return "#" + mixed.map((channel) => channel.toString(16).padStart(2, "0")).join("");
    });
  },

  channels: (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)),

  apply(plot) {
    const [ink, muted, rule] = ["ink", "muted", "rule"].map(theme.color);
    const font = getComputedStyle(document.body).fontFamily;
    const text = (name) => ({ [`${name}_text_color`]: muted, [`${name}_text_font`]: font, [`${name}_text_font_size`]: "12px" });
    for (const axis of [...plot.below, ...plot.left]) {
      const labels = { ...text("major_label"), major_tick_line_color: muted };
      if (axis.type === "ColorBar") axis.setv({ ...labels, bar_line_color: rule });
      else axis.setv({ ...labels, ...text("axis_label"), axis_line_color: muted });
    }
    for (const line of plot.center) {
      if (line.type === "Grid") line.grid_line_color = rule;
      if (line.type === "Span") line.line_color = ink;
    }
  },
};
