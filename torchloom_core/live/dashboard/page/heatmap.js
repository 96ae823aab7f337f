// Every worker is a cell, coloured by its state or a metric, grouped by replica group, node or rack.

import { ratioColour, SLOW, STATE_COLOURS, VALUE_COLOURS } from "./colours.js";
import { el } from "./dom.js";
import { titleOf, valueOf } from "./metrics.js";

const BY_NAME = new Intl.Collator(undefined, { numeric: true });
const LABEL_PX = 16;
const GAP_PX = 6;
const LARGEST_PX = matchMedia("(pointer: coarse)").matches ? 44 : 28;
const SMALLEST_PX = 3;

export class HeatMap {
  constructor(store, onOpen, onSay) {
    this.store = store;
    this.onOpen = onOpen;
    this.onSay = onSay;
    this.by = "group";
    this.metric = "";
    this.cursor = 0;
    this.canvas = el("canvas", {
      className: "heatmap",
      tabIndex: 0,
      role: "application",
      "aria-label": "Heatmap of all workers. Arrows move, Enter opens a worker.",
      onkeydown: (event) => this.press(event),
      onclick: (event) => this.click(event),
      onfocus: () => { this.say(); this.paint(); },
      onblur: () => this.paint(),
    });
    this.placed = -1;
    this.cells = [];
    this.order = [];
  }

  // Lay the cells out: a block for each group, row after row.
  lay() {
    const { places, placesVersion } = this.store;
    const width = this.canvas.clientWidth;
    const key = `${placesVersion} ${places.length} ${this.by} ${width}`;
    if (key === this.key || !width) return;
    this.key = key;
    const index = { none: -1, group: 1, node: 2, rack: 3, role: 4 }[this.by];
    const blocks = new Map();
    places.forEach((place, row) => {
      const name = index < 0 ? "" : place[index] || `no ${this.by}`;
      if (!blocks.has(name)) blocks.set(name, []);
      blocks.get(name).push(row);
    });
    const names = [...blocks.keys()].sort(BY_NAME.compare);
    const area = (width * 420) / Math.max(1, places.length);
    const size = Math.max(SMALLEST_PX, Math.min(LARGEST_PX, Math.floor(Math.sqrt(area))));
    const labelled = index >= 0 && names.length <= 400;
    this.cells = [];
    this.labels = [];
    this.order = [];
    let x = 0, y = labelled ? LABEL_PX : 0, deep = 0;
    for (const name of names) {
      const rows = blocks.get(name).sort((a, b) => BY_NAME.compare(places[a][0], places[b][0]));
      const wide = Math.min(rows.length, Math.max(1, Math.ceil(Math.sqrt(rows.length) * 1.6), Math.floor(labelled ? 56 / size : 1)));
      const block = Math.max(wide * size, labelled ? Math.min(60, 7 * name.length + 4) : 0);
      if (x && x + block > width) {
        x = 0;
        y += deep + GAP_PX + (labelled ? LABEL_PX : 0);
        deep = 0;
      }
      if (labelled) this.labels.push([name, x, y - 4]);
      rows.forEach((row, i) => {
        this.cells[row] = [x + (i % wide) * size, y + Math.floor(i / wide) * size];
        this.order.push(row);
      });
      deep = Math.max(deep, Math.ceil(rows.length / wide) * size);
      x += block + (names.length > 1 ? GAP_PX : 0);
    }
    this.size = size;
    const ratio = window.devicePixelRatio || 1;
    this.height = y + deep + 2;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  paint() {
    this.lay();
    if (!this.context) return;
    const { store, context, size } = this;
    const [states, values] = store.channels;
    const names = Object.keys(store.run?.counts ?? {});
    const style = getComputedStyle(document.body);
    context.clearRect(0, 0, this.canvas.clientWidth, this.height);
    const edge = size > 5 ? 1 : 0;
    const bad = [], empty = [], slow = [], isSlow = new Set(store.run?.slow ?? []);
    const colours = this.coloursOf();
    for (const row of this.order) {
      const state = names[states[row]] ?? "unstore";
      const [x, y] = this.cells[row];
      context.fillStyle = this.metric ? colours[values[row] ?? 0] : STATE_COLOURS[state];
      context.fillRect(x, y, size - edge, size - edge);
      if (this.metric && !values[row]) empty.push([x, y]);
      if (isSlow.has(row)) slow.push([x, y]);
      if (state === "failed" || state === "unreachable") bad.push([x, y, STATE_COLOURS[state]]);
    }
    // A worker without a value is an outline.
    context.lineWidth = 1;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--faint").trim();
    for (const [x, y] of empty) if (edge) context.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
    // Slow and failed workers are marked in every colouring.
    context.lineWidth = Math.max(1, size / 8);
    context.strokeStyle = SLOW;
    for (const [x, y] of slow) context.strokeRect(x + context.lineWidth / 2, y + context.lineWidth / 2, size - edge - context.lineWidth, size - edge - context.lineWidth);
    context.lineWidth = Math.max(1, size / 6);
    for (const [x, y, colour] of bad) {
      context.strokeStyle = colour;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + size - edge, y + size - edge);
      context.moveTo(x + size - edge, y);
      context.lineTo(x, y + size - edge);
      context.stroke();
    }
    context.fillStyle = style.color;
    context.font = "11px system-ui, sans-serif";
    for (const [name, x, y] of this.labels) context.fillText(name, x, y, 60);
    const at = this.cells[this.order[this.cursor]];
    if (at && document.activeElement === this.canvas) {
      context.lineWidth = 2;
      context.strokeStyle = style.color;
      context.strokeRect(at[0] - 1, at[1] - 1, size + 1, size + 1);
    }
  }

  press(event) {
    const last = this.order.length - 1;
    const [, y] = this.cells[this.order[this.cursor]] ?? [0, 0];
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) this.cursor += step;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.cursor = this.nextLine(y, event.key === "ArrowDown");
    else if (event.key === "Enter" || event.key === " ") this.onOpen(this.order[this.cursor]);
    else return;
    event.preventDefault();
    this.cursor = Math.max(0, Math.min(last, this.cursor));
    this.say();
    this.paint();
  }

  // The nearest cell in the line below, or above.
  nextLine(y, down) {
    const [x] = this.cells[this.order[this.cursor]] ?? [0];
    let best = this.cursor, least = Infinity;
    this.order.forEach((row, i) => {
      const [cx, cy] = this.cells[row];
      const ahead = down ? cy - y : y - cy;
      if (ahead <= 0) return;
      const far = ahead * 1000 + Math.abs(cx - x);
      if (far < least) [best, least] = [i, far];
    });
    return best;
  }

  click(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const found = this.order.findIndex((row) => {
      const [cx, cy] = this.cells[row];
      return x >= cx && x < cx + this.size && y >= cy && y < cy + this.size;
    });
    if (found < 0) return;
    this.cursor = found;
    this.onOpen(this.order[found]);
  }

  // Positive values are coloured by their ratio to the median, which must be on the scale.
  isAnchored() {
    const { median, scale } = this.store;
    return median > 0 && scale.low <= median && median <= scale.high;
  }

  coloursOf() {
    if (!this.metric || !this.isAnchored()) return VALUE_COLOURS;
    const { median, scale, run } = this.store;
    return VALUE_COLOURS.map((none, byte) => (byte ? ratioColour((scale.low + ((byte - 1) / 254) * (scale.high - scale.low)) / median, run.slow_ratio) : none));
  }

  // A colour stands for a value to a part in 250, and not beyond the ends of the scale.
  valueOf(row) {
    const exact = this.store.extremes.get(row);
    if (exact !== undefined) return valueOf(this.metric, exact);
    const about = { 0: "", 1: "at most ", 255: "at least " }[this.store.channels[1][row] ?? 0] ?? "about ";
    return about + valueOf(this.metric, Number(this.store.value(row).toPrecision(3)));
  }

  say() {
    const row = this.order[this.cursor];
    if (row === undefined) return;
    const [worker, group, node, rack] = this.store.places[row];
    const state = Object.keys(this.store.run.counts)[this.store.channels[0][row]];
    const value = this.metric ? `, ${titleOf(this.metric)} ${this.valueOf(row)}` : "";
    this.onSay(`${worker}, ${state}${value}, group ${group}, node ${node}${rack ? `, rack ${rack}` : ""}`);
  }
}
