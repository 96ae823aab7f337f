// A series with its band of the least and the most: what is drawn is never less than what was told.

import { el, number } from "./dom.js";

const HEIGHT_PX = 160;
export const GUTTER_PX = 64; // left of what is plotted, and right of it
export const EDGE_PX = 12;
const LEAST_PX = 5;
const MOVES = { pub: (kind) => kind === "mousemove" || kind === "mouseleave", sub: () => true };

// ``span`` returns from when to when it is drawn, all of it unless given; ``onSpan`` is told what was
// chosen with the mouse. Charts of one ``group`` have one cursor.
export class Chart {
  constructor(metric, { span = null, onSpan = null, group = null } = {}) {
    this.metric = metric;
    this.span = span;
    this.onSpan = onSpan;
    this.group = group;
    this.place = el("div", { className: "chart" });
    this.drawn = "";
  }

  draw(points, marks) {
    const width = this.place.clientWidth;
    if (!width || !points?.length) return;
    const last = points[points.length - 1];
    this.marks = marks;
    const key = `${width} ${points.length} ${points[0][0]} ${last.join(" ")} ${marks.length} ${this.span?.()} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const data = [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
    if (!this.plot || this.width !== width) this.make(width, data);
    else this.plot.setData(data);
  }

  make(width, data) {
    this.width = width;
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
        scales: { x: { time: true, ...(this.span && { range: () => this.span() }) } },
        axes: [axis, { ...axis, size: GUTTER_PX, values: (_, ticks) => ticks.map(number) }],
        series: [
          {},
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
