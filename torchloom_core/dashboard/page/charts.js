// A series with its band of the least and the most: what is drawn is never less than what was told.

import { clock, day, el, moment, number } from "./dom.js";

const HEIGHT_PX = 170;
export const GUTTER_PX = 64; // left of what is plotted, and right of it
export const EDGE_PX = 12;
const LEAST_PX = 5;
export const LINEAR = 1, LOGARITHMIC = 3; // as uPlot calls them
const WIDE = 100; // most by least: from there on a linear axis hides the small ones
const MINUTE_S = 60;
const APART_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const MOST_DECADES = 6;
const MOVES = { pub: (kind) => kind === "mousemove" || kind === "mouseleave", sub: () => true };

export const USUAL_METRICS = ["loss", "step_time_s", "tokens_per_s", "samples_per_s", "grad_norm", "update_norm"];

// Of the time, and of the day where it is another than before.
function times(ticks, apart) {
  return ticks.map((tick, n) => {
    const time = apart < MINUTE_S ? clock(tick) : clock(tick).slice(0, 5);
    return n && day(tick) === day(ticks[n - 1]) ? time : `${time}\n${day(tick)}`;
  });
}

// Of a logarithmic axis: uPlot itself draws nine lines a decade.
export const IN_DECADES = { splits: (_, which, low, high) => decades(low, high), filter: (_, ticks) => ticks };

function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const stride = Math.max(1, Math.ceil((last - first) / MOST_DECADES));
  return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, n) => 10 ** (first + n * stride));
}

// What the upright lines mean.
export function lineLegend() {
  const sample = (colour, text) => {
    const swatch = el("span", { className: "swatch" });
    swatch.style.background = `var(${colour})`;
    return el("span", { className: "symbol" }, swatch, text);
  };
  return el("p", { className: "faint" }, "upright lines: ", sample("--accent", "an action on the run was granted"), sample("--danger", "somebody failed"));
}

// ``span`` returns from when to when it is drawn, all of it unless given; ``onSpan`` is told what was
// chosen with the mouse. Charts of one ``group`` have one cursor.
export class Chart {
  constructor(metric, { span = null, onSpan = null, group = null } = {}) {
    this.metric = metric;
    this.span = span;
    this.onSpan = onSpan;
    this.group = group;
    this.place = el("div", { className: "chart", role: "img", "aria-label": `${metric}: nothing so far` });
    this.drawn = "";
  }

  draw(points, marks) {
    const width = this.place.clientWidth;
    if (!width || !points?.length) return;
    const last = points[points.length - 1];
    this.marks = marks;
    const isWide = this.isWide(points);
    const key = `${isWide} ${width} ${points.length} ${points[0][0]} ${last.join(" ")} ${marks.length} ${this.span?.()} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const data = [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
    const made = `${width} ${isWide}`;
    if (!this.plot || this.made !== made) this.make(width, data, isWide);
    else this.plot.setData(data);
    this.made = made;
    this.place.setAttribute("aria-label", `${this.metric}: the newest median is ${number(last[2])}, from ${number(last[1])} to ${number(last[3])}`);
  }

  // Whether what is in sight is all above 0, and so far apart that its logarithm shows more.
  isWide(points) {
    const [from, until] = this.span?.() ?? [-Infinity, Infinity];
    let least = Infinity, most = -Infinity;
    for (const [at, low, , high] of points) {
      if (at < from || at > until) continue;
      least = Math.min(least, low);
      most = Math.max(most, high);
    }
    return least > 0 && most > WIDE * least;
  }

  make(width, data, isWide) {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const [ink, line, accent] = ["--faint", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const band = { stroke: "transparent", width: 0, points: { show: false } };
    const told = (_, value) => number(value);
    this.plot = new uPlot(
      {
        width,
        height: HEIGHT_PX,
        padding: [null, EDGE_PX, null, null],
        cursor: { drag: { x: true, y: false, setScale: !this.onSpan }, ...(this.group && { sync: { key: this.group, filters: MOVES } }) },
        scales: { x: { time: true, ...(this.span && { range: () => this.span() }) }, y: { distr: isWide ? LOGARITHMIC : LINEAR } },
        axes: [
          { ...axis, space: 72, incrs: APART_S, values: (_, ticks, which, space, apart) => times(ticks, apart) },
          { ...axis, space: 24, size: GUTTER_PX, values: (_, ticks) => ticks.map(number), ...(isWide && IN_DECADES) },
        ],
        series: [
          { label: "time", value: (_, at) => (at === null ? "–" : moment(at)) },
          { ...band, label: "least", value: told },
          { label: "median", stroke: accent, width: 2, points: { show: data[0].length < 2 }, value: told },
          { ...band, label: "most", value: told },
        ],
        hooks: { draw: [(plot) => this.mark(plot, style)], setSelect: [(plot) => this.choose(plot)] },
        bands: [{ series: [3, 1], fill: `color-mix(in srgb, ${accent} 25%, transparent)` }],
      },
      data,
      this.place,
    );
  }

  choose(plot) {
    const { left, width } = plot.select;
    if (!this.onSpan || width < LEAST_PX) return;
    const span = [left, left + width].map((x) => plot.posToVal(x, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onSpan(...span);
  }

  mark(plot, style) {
    const { ctx, bbox, scales } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    for (const [at, colour] of this.marks) {
      if (at < scales.x.min || at > scales.x.max) continue;
      const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
      ctx.strokeStyle = style.getPropertyValue(colour).trim();
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}
