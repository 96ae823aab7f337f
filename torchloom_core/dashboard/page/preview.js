// A change tried out on a standby before it is made: what it costs, both curves, and what they say.

import { IN_DECADES, LINEAR, LOGARITHMIC } from "./charts.js";
import { button, el, fill, lock, number, span } from "./dom.js";
import { Head } from "./standby_tasks.js";

const HEIGHT_PX = 240;
const WIDE = 1000;
const FIELDS = [["steps", "steps", 50, 1, 10000], ["repeats", "pairs", 5, 1, 50], ["seconds", "at most seconds", 120, 1, 3600]];
const TONES = { better: "good", worse: "bad" };

export class WhatIf {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.inputs = FIELDS.map(([name, label, value, min, max]) => [name, el("label", {}, `${label} `, el("input", { type: "number", name, value: String(value), min: String(min), max: String(max) }))]);
    this.price = el("span", { className: "faint" });
    this.leave = button("end it", "", () => act.propose({ kind: "preview", steps: 0 }));
    this.head = new Head(known, "preview", "rehearse");
    this.words = el("div");
    this.place = el("div", { className: "chart", role: "img", "aria-label": "The loss with the change and without it: nothing so far" });
    this.part = el("section", { className: "wide", "aria-label": "What if" }, el("h2", {}, "What if: a change tried out on a standby"), el("div", { className: "row" }, this.inputs.map(([, label]) => label), this.price, this.leave), this.head.place, this.words, this.place);
  }

  wanted() {
    return { preview: true };
  }

  asked() {
    return Object.fromEntries(this.inputs.map(([name, label]) => [name, Number(label.querySelector("input").value)]));
  }

  async try(knob, value) {
    const answer = await this.act.propose({ kind: "preview", values: { [knob]: value }, ...this.asked() });
    if (answer.ok) this.part.scrollIntoView({ block: "nearest" });
  }

  update() {
    const { preview } = this.known;
    lock(this.leave, this.act.lock() || (this.head.isUnderWay() ? "" : "no preview is under way"));
    this.head.update(preview?.command, preview?.of_step);
    const price = this.priceOf(this.asked());
    fill(this.price, price, () => price);
    fill(this.words, JSON.stringify([preview?.worker, preview?.points, preview?.of, preview?.words]), () => wordsOf(preview));
    const width = this.place.clientWidth;
    if (!width || !preview) return;
    const drawn = `${preview.command} ${preview.points} ${preview.of} ${width} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
    if (drawn !== this.drawn) this.draw(preview, width);
    this.drawn = drawn;
  }

  priceOf({ steps, repeats, seconds }) {
    const step = this.known.run?.status?.step_time_s ?? Infinity;
    return `costs at most ${span(Math.min(2 * steps * repeats * step, seconds))} of one standby, and no rank that trains anything`;
  }

  draw({ steps, curves }, width) {
    this.plot?.destroy();
    this.plot = null;
    const told = steps.length ? `, over ${steps.at(-1)} steps: the verdict stands above` : ": nothing so far";
    this.place.setAttribute("aria-label", `The loss with the change and without it${told}`);
    if (!steps.length) return;
    const style = getComputedStyle(document.documentElement);
    const [ink, line, accent] = ["--faint", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const value = (_, loss) => number(loss);
    const numbers = (_, ticks) => ticks.map(number);
    const arm = (label, stroke) => [["least", "transparent"], ["", stroke], ["most", "transparent"]].map(([which, colour]) => ({ label: `${label} ${which}`.trim(), stroke: colour, width: which ? 0 : 2, points: { show: !which && steps.length < 2 }, value }));
    const wide = isWide(curves);
    const band = (first, colour) => ({ series: [first + 2, first], fill: `color-mix(in srgb, ${colour} 20%, transparent)` });
    this.plot = new uPlot(
      {
        width,
        height: HEIGHT_PX,
        scales: { x: { time: false }, y: { distr: wide ? LOGARITHMIC : LINEAR } },
        axes: [{ ...axis, values: numbers }, { ...axis, size: 64, values: numbers, ...(wide && IN_DECADES) }],
        series: [{ label: "step", value }, ...arm("without", ink), ...arm("with the change", accent)],
        bands: [band(1, ink), band(4, accent)],
      },
      [steps, ...curves],
      this.place,
    );
  }
}

// Whether a loss that ran away would have all others on the ground line.
function isWide(curves) {
  const losses = curves.flat().filter((loss) => loss !== null);
  const least = Math.min(...losses);
  return least > 0 && Math.max(...losses) > WIDE * least;
}

function wordsOf(preview) {
  if (!preview?.worker) return el("p", { className: "faint" }, "Nothing was tried yet: give a knob a value above, and preview it. A standby does it whose script offers it: need preview= in its attach().");
  const rows = [["on", preview.worker], ...preview.words];
  return el("table", { className: "words" }, el("tbody", {}, rows.map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { className: name === "verdict" ? TONES[preview.says] ?? "" : "" }, text)))));
}
