// Charts: one look for all of them, with a tooltip, zoom by dragging, and annotations.

import { clock, day, el, fill, many, moment, number, swatch } from "./dom.js";
import { titleOf, valueOf } from "./metrics.js";

const HEIGHT_PX = 170;
export const GUTTER_PX = 72; // left and right of the plotted area
export const EDGE_PX = 28;
const LEAST_PX = 5;
const NEAR_PX = 6;
const LABEL_LINE_PX = 12;
const LABEL_LINES = 4; // above the plot, and in it
const LONGEST_LABEL = 40;
const LINEAR = 1, LOGARITHMIC = 3; // as uPlot numbers them
const WIDE = 100; // largest by smallest value: from there on a linear axis hides the small ones
const MINUTE_S = 60;
const INTERVALS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const MOST_DECADES = 6;
const CURSOR_EVENTS = { pub: (kind) => kind === "mousemove" || kind === "mouseleave", sub: () => true };
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

// The time, and the day where it changes.
function times(ticks, interval) {
  return ticks.map((tick, n) => {
    const time = interval < MINUTE_S ? clock(tick) : clock(tick).slice(0, 5);
    return n && day(tick) === day(ticks[n - 1]) ? time : `${time}\n${day(tick)}`;
  });
}

function powers(ticks) {
  return ticks.map((tick) => {
    const power = Math.round(Math.log10(tick));
    return Math.abs(power) < 4 ? number(tick) : `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((digit) => SUPERSCRIPTS[digit]).join("")}`;
  });
}

// Ticks at whole decades: uPlot itself draws nine lines for each.
function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const stride = Math.max(1, Math.ceil((last - first) / MOST_DECADES));
  return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, n) => 10 ** (first + n * stride));
}

export function colourOf(name) {
  return name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;
}

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Whether all values are above 0, and so far apart that a logarithmic axis shows more.
export function needsLog(values, wide = WIDE) {
  let least = Infinity, most = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return least > 0 && most > wide * least;
}

// A legend of the entries that are drawn: [colour, text].
export function legend(entries) {
  return el("p", { className: "faint" }, entries.map(([colour, text]) => el("span", { className: "key" }, swatch(colour.startsWith("--") ? `var(${colour})` : colour), text)));
}

// A frame with a title, its live value, and a place to plot in.
export class Frame {
  constructor(title, note) {
    this.title = title;
    this.note = el("span", { className: "faint" }, note);
    this.value = el("output");
    this.canvas = el("div", { role: "img", "aria-label": `${title}: no data yet` });
    this.tip = el("div", { className: "tip", hidden: true, "aria-hidden": "true" });
    this.place = el("figure", { className: "chart" }, el("figcaption", {}, el("b", {}, title), this.note, this.value), this.canvas, this.tip);
  }

  get width() {
    return this.canvas.clientWidth;
  }

  // lines: [label, colour, [low column, middle column, high column] or [column]]; text: what the
  // tooltip says of a point.
  make(data, { width, height = HEIGHT_PX, x, isLog, series, bands, hooks = {}, cursor = {}, text }) {
    this.plot?.destroy();
    const [ink, line] = ["--faint", "--line"].map(colourOf);
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const isTime = x.time ?? false;
    this.plot = new uPlot(
      {
        width,
        height,
        padding: [12, EDGE_PX, null, null],
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, ...cursor },
        scales: { x: { time: isTime, ...(x.range && { range: x.range }) }, y: { distr: isLog ? LOGARITHMIC : LINEAR } },
        axes: [
          { ...axis, ...(isTime ? { space: 72, incrs: INTERVALS_S, values: (_, ticks, which, space, interval) => times(ticks, interval) } : { values: (_, ticks) => ticks.map(number) }) },
          { ...axis, space: 24, size: GUTTER_PX, values: (_, ticks) => (isLog ? powers(ticks) : ticks.map(number)), ...(isLog && { splits: (_, which, low, high) => decades(low, high), filter: (_, ticks) => ticks }) },
        ],
        series: [{}, ...series],
        bands,
        hooks: { ...hooks, setCursor: [(plot) => this.point(plot, text)] },
      },
      data,
      this.canvas,
    );
    return this.plot;
  }

  point(plot, text) {
    const { idx, left } = plot.cursor;
    const lines = idx === null || idx === undefined || left < 0 ? "" : text(plot, idx, left);
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.textContent = lines;
    const x = plot.over.offsetLeft + left;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.place.clientWidth - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${this.canvas.offsetTop + 14}px`;
  }
}

// A metric over time: median, and a band from min to max. ``span`` returns the visible begin and
// end; ``onSpan`` gets what was chosen with the mouse, null for everything. Charts of one ``group``
// share a cursor. ``isSingle``: of one worker, without a band.
export class Chart {
  constructor(metric, { span = null, onSpan = null, group = null, isSingle = false } = {}) {
    this.metric = metric;
    this.span = span;
    this.onSpan = onSpan;
    this.group = group;
    this.isSingle = isSingle;
    this.frame = new Frame(titleOf(metric), isSingle ? "" : "median, min–max");
    this.place = this.frame.place;
    this.drawn = "";
  }

  // marks: [{at, colour, label, text}]
  draw(points, marks) {
    const { width } = this.frame;
    if (!width || !points?.length) return;
    const last = points[points.length - 1];
    this.marks = marks;
    const isLog = this.isLog(points);
    const key = `${isLog} ${width} ${points.length} ${points[0][0]} ${last.join(" ")} ${marks.length} ${this.span?.()} ${isDark()}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const data = [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
    const made = `${width} ${isLog} ${isDark()}`;
    if (!this.frame.plot || this.made !== made) this.make(width, data, isLog);
    else this.frame.plot.setData(data);
    this.made = made;
    const note = `${this.isSingle ? "" : "median, min–max"}${isLog ? ", log scale" : ""}`.replace(/^, /, "");
    fill(this.frame.note, note, () => note);
    this.frame.value.textContent = valueOf(this.metric, last[2]);
    this.frame.canvas.setAttribute("aria-label", `${this.frame.title}: latest median ${number(last[2])}, min ${number(last[1])}, max ${number(last[3])}`);
  }

  isLog(points) {
    const [from, until] = this.span?.() ?? [-Infinity, Infinity];
    return needsLog(points.filter(([at]) => at >= from && at <= until).flatMap(([, low, , high]) => [low, high]));
  }

  make(width, data, isLog) {
    const accent = colourOf("--accent");
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    const plot = this.frame.make(data, {
      width,
      isLog,
      x: { time: true, range: this.span && (() => this.span()) },
      series: [edge, { stroke: accent, width: 2, points: { show: (one) => one.data[0].length < 2 } }, edge],
      bands: [{ series: [3, 1], fill: `color-mix(in srgb, ${accent} 22%, transparent)` }],
      cursor: this.group && { sync: { key: this.group, filters: CURSOR_EVENTS } },
      hooks: { draw: [(one) => this.mark(one)], setSelect: [(one) => this.choose(one)] },
      text: (one, n, left) => this.text(one, n, left),
    });
    plot.over.ondblclick = () => this.onSpan?.(null);
  }

  text(plot, n, left) {
    const [at, low, middle, high] = plot.data.map((column) => column[n]);
    const value = valueOf(this.metric, middle);
    const near = this.marks.filter((one) => Math.abs(plot.valToPos(one.at, "x") - left) <= NEAR_PX);
    return [moment(at), this.isSingle ? value : `median ${value}\nmin ${number(low)}  max ${number(high)}`, ...near.slice(0, 3).map((one) => one.text), near.length > 3 ? `and ${many(near.length - 3, "more annotation")}` : ""].filter(Boolean).join("\n");
  }

  choose(plot) {
    const { left, width } = plot.select;
    if (!this.onSpan || width < LEAST_PX) return;
    const span = [left, left + width].map((x) => plot.posToVal(x, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onSpan(span);
  }

  // A dashed line with a triangle for each annotation, and its label where there is room.
  mark(plot) {
    const { ctx, bbox, scales } = plot;
    const ratio = devicePixelRatio || 1;
    const visible = this.marks.filter(({ at }) => at >= scales.x.min && at <= scales.x.max);
    const places = visible.map(({ at }) => Math.round(plot.valToPos(at, "x", true)) + 0.5);
    ctx.save();
    ctx.font = `${10 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    visible.forEach(({ colour, label }, n) => {
      const x = places[n];
      ctx.strokeStyle = ctx.fillStyle = colourOf(colour);
      ctx.lineWidth = ratio;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top - 5 * ratio);
      ctx.lineTo(x + 4 * ratio, bbox.top - 5 * ratio);
      ctx.lineTo(x, bbox.top + ratio);
      ctx.fill();
    });
    this.writeLabels(plot, visible, places, ratio);
    ctx.restore();
  }

  // Whole labels, the newest first: beside their mark, on the first line that has room for them.
  writeLabels({ ctx, bbox }, visible, places, ratio) {
    const lines = Array.from({ length: LABEL_LINES }, () => []);
    const [least, most] = [bbox.left, bbox.left + bbox.width + EDGE_PX * ratio];
    for (let n = visible.length - 1; n >= 0; n -= 1) {
      const { label, colour } = visible[n];
      if (!label) continue;
      const wide = ctx.measureText(label).width;
      const right = places[n] + 6 * ratio;
      const begin = Math.max(least, right + wide <= most ? right : places[n] - 6 * ratio - wide);
      const fits = (line, i) => line.every(([from, until]) => begin + wide < from || begin > until) && (i || places.every((x, other) => other === n || x + 6 * ratio < begin || x - 6 * ratio > begin + wide));
      const i = lines.findIndex(fits);
      if (i < 0) continue;
      lines[i].push([begin, begin + wide + 6 * ratio]);
      const y = bbox.top - ratio + i * LABEL_LINE_PX * ratio;
      if (i) {
        ctx.fillStyle = colourOf("--panel");
        ctx.fillRect(begin - ratio, y - 9 * ratio, wide + 2 * ratio, 11 * ratio);
      }
      ctx.fillStyle = colourOf(colour);
      ctx.fillText(label, begin, y);
    }
  }
}

export function labelOf(text) {
  return text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL - 1)}…` : text;
}
