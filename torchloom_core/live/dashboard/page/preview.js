// Preview: a knob change tried on a standby, its cost, both loss curves, and the result.

import { colourOf, Frame, isDark, legend, needsLog } from "./charts.js";
import { button, el, fill, lock, number, span } from "./dom.js";
import { TaskHead } from "./standby_tasks.js";

const HEIGHT_PX = 240;
const WIDE = 1000;
const FIELDS = [["steps", "Steps", 50, 1, 10000], ["repeats", "Pairs of runs", 5, 1, 50], ["seconds", "At most (s)", 120, 1, 3600]];
const TONES = { better: "good", worse: "bad" };

export class WhatIf {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.inputs = FIELDS.map(([name, label, value, min, max]) => [name, el("label", {}, `${label} `, el("input", { type: "number", name, value: String(value), min: String(min), max: String(max) }))]);
    this.price = el("span", { className: "faint" });
    this.end = button("End preview", "", () => act.propose({ kind: "preview", steps: 0 }));
    this.head = new TaskHead(store, "preview", "rehearse");
    this.words = el("div");
    this.frame = new Frame("Loss by step", "mean, min–max");
    this.legend = legend([["--faint", "without the change"], ["--accent", "with the change"]]);
    this.part = el("section", { className: "wide", "aria-label": "Preview" }, el("h2", {}, "Preview: try a knob change on a standby"), el("div", { className: "row" }, this.inputs.map(([, label]) => label), this.price, this.end), this.head.place, this.words, this.frame.place, this.legend);
  }

  wanted() {
    return { preview: true };
  }

  options() {
    return Object.fromEntries(this.inputs.map(([name, label]) => [name, Number(label.querySelector("input").value)]));
  }

  async try(knob, value) {
    const answer = await this.act.propose({ kind: "preview", values: { [knob]: value }, ...this.options() });
    if (answer.ok) this.part.scrollIntoView({ block: "nearest" });
  }

  update() {
    const { preview } = this.store;
    lock(this.end, this.act.lock() || (this.head.isUnderWay() ? "" : "no preview is under way"));
    this.head.update(preview?.command, preview?.of_step);
    const price = this.priceOf(this.options());
    fill(this.price, price, () => price);
    fill(this.words, JSON.stringify([preview?.worker, preview?.points, preview?.of, preview?.words]), () => wordsOf(preview));
    this.frame.place.hidden = this.legend.hidden = !preview?.steps.length;
    const { width } = this.frame;
    if (!width || !preview?.steps.length) return;
    const drawn = `${preview.command} ${preview.points} ${preview.of} ${width} ${isDark()}`;
    if (drawn !== this.drawn) this.draw(preview, width);
    this.drawn = drawn;
  }

  priceOf({ steps, repeats, seconds }) {
    const step = this.store.run?.status?.step_time_s ?? Infinity;
    return `takes one standby for at most ${span(Math.min(2 * steps * repeats * step, seconds))}; training is not affected`;
  }

  draw({ steps, curves }, width) {
    this.frame.canvas.setAttribute("aria-label", `The loss with the change and without it, over ${steps.at(-1)} steps: the result stands above`);
    const [ink, accent] = ["--faint", "--accent"].map(colourOf);
    const arm = (colour) => [["transparent", 0], [colour, 2], ["transparent", 0]].map(([stroke, line]) => ({ stroke, width: line, points: { show: line > 0 && steps.length < 2 } }));
    const isLog = needsLog(curves.flat(), WIDE);
    fill(this.frame.note, String(isLog), () => `mean, min–max${isLog ? ", log scale" : ""}`);
    const band = (first, colour) => ({ series: [first + 2, first], fill: `color-mix(in srgb, ${colour} 20%, transparent)` });
    this.frame.make([steps, ...curves], {
      width,
      height: HEIGHT_PX,
      isLog,
      x: {},
      series: [...arm(ink), ...arm(accent)],
      bands: [band(1, ink), band(4, accent)],
      text: ({ data }, n) => `step ${data[0][n]}\nwithout the change ${number(data[2][n])}\nwith the change ${number(data[5][n])}`,
    });
  }
}

function wordsOf(preview) {
  if (!preview?.worker) return el("p", { className: "faint" }, "No preview yet: enter a value of a knob above, and press Preview. It takes a standby whose script passes preview= to attach().");
  const rows = [["worker", preview.worker], ...preview.words];
  return el("table", { className: "words" }, el("tbody", {}, rows.map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { className: name === "verdict" ? TONES[preview.result] ?? "" : "" }, text)))));
}
