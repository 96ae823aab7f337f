// A series with its band of the least and the most: what is drawn is never less than what was told.

import { el, number } from "./dom.js";

const HEIGHT_PX = 160;

export class Chart {
  constructor(metric) {
    this.metric = metric;
    this.place = el("div", { className: "chart" });
    this.drawn = "";
  }

  draw(points, marks) {
    const width = this.place.clientWidth;
    if (!width || !points?.length) return;
    const last = points[points.length - 1];
    this.marks = marks;
    const key = `${width} ${points.length} ${last.join(" ")} ${marks.length} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
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
        cursor: { drag: { x: true, y: false } },
        scales: { x: { time: true } },
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(number) }],
        series: [
          {},
          { ...band, label: "least", value: told },
          { label: "median", stroke: accent, width: 2, points: { show: data[0].length < 2 }, value: told },
          { ...band, label: "most", value: told },
        ],
        hooks: { draw: [(plot) => this.mark(plot, style)] },
        bands: [{ series: [3, 1], fill: `color-mix(in srgb, ${accent} 25%, transparent)` }],
      },
      data,
      this.place,
    );
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
