// Telemetry, and all that was said and done, on one axis of time, with a link to each stretch of it.

import { Chart, lineLegend, USUAL_METRICS } from "./charts.js";
import { el, fill, moment } from "./dom.js";
import { Lanes } from "./lanes.js";
import { lined, momentsOf, SYMBOLS } from "./moments.js";
import { lineItem, storyItem } from "./record.js";

const MOST_CHARTS = 4;
const USUAL_S = 900;
const LEAST_S = 2;
const MOST_OPENED = 30;
const SPANS = [["5 minutes", 300], ["15 minutes", USUAL_S], ["an hour", 3600], ["6 hours", 21600], ["a day", 86400], ["all of it", 0]];

export class TimelineScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.spanS = USUAL_S; // 0: all of it
    this.fromS = null; // null: it ends now, and moves on
    this.sinceS = 0;
    this.opened = [];
    this.charts = new Map();
    this.lanes = new Lanes((members) => this.open(members));
    this.pick = el("select", { "aria-label": "how long a stretch", onchange: (event) => this.choose(this.spanS ? this.fromS : null, Number(event.target.value)) }, SPANS.map(([name, seconds]) => el("option", { value: String(seconds) }, name)), el("option", { value: "", disabled: true }, "as chosen"));
    this.link = el("a", {}, "link to this stretch");
    this.title = el("span");
    const buttons = [["earlier", -0.5], ["later", 0.5]].map(([name, share]) => el("button", { onclick: () => this.move(share) }, name));
    const wider = el("button", { onclick: () => this.widen() }, "wider");
    const now = el("button", { onclick: () => this.choose(null, this.spanS) }, "now");
    this.plots = el("div");
    this.detail = el("ol", { className: "record", "aria-live": "polite" });
    this.none = el("p", { className: "faint" }, "Choose a mark: with the mouse, or with Tab, the arrows and Enter. A stretch is chosen with the mouse in a plot, too.");
    this.parts = [
      el("section", { className: "wide", "aria-label": "Timeline" }, el("div", { className: "row" }, el("h2", {}, "Timeline"), this.pick, buttons, wider, now, this.title, this.link), this.lanes.place, el("p", { className: "faint" }, SYMBOLS.map(([glyph, text]) => el("span", { className: "symbol" }, `${glyph} ${text} `))), lineLegend(), this.plots),
      el("section", { className: "wide", "aria-label": "What the mark stands for" }, el("h2", {}, "What the mark stands for"), this.none, this.detail),
    ];
  }

  metrics() {
    const there = this.known.run?.metrics ?? [];
    const chosen = USUAL_METRICS.filter((name) => there.includes(name));
    return (chosen.length ? chosen : there).slice(0, MOST_CHARTS);
  }

  // From when on series are wanted: asked anew only where that lets the plot be finer, or be at all.
  wanted() {
    const [from] = this.span();
    if (!this.spanS) this.sinceS = 0;
    else if (from < this.sinceS || from > this.sinceS + this.spanS) this.sinceS = Math.max(0, Math.floor(from) - 1);
    return { series: this.metrics(), since_s: this.sinceS };
  }

  span() {
    const now = this.known.run?.now_s ?? 0;
    if (!this.spanS) return [Math.min(this.first(), now - LEAST_S), now];
    const from = this.fromS ?? now - this.spanS;
    return [from, from + this.spanS];
  }

  // The first moment that the page knows of.
  first() {
    const { lines, stories, series } = this.known;
    const firsts = [lines[0]?.at_s, ...[...stories.values()].map((story) => story.at_s), ...this.metrics().map((name) => series.get(name)?.[0]?.[0])];
    return firsts.filter(Number.isFinite).reduce((one, other) => Math.min(one, other), Infinity);
  }

  choose(fromS, spanS) {
    this.fromS = spanS ? fromS : null;
    this.spanS = spanS;
    this.update();
    this.act.look();
    this.act.remember();
  }

  move(share) {
    const [from, until] = this.span();
    this.choose(from + share * (until - from), Math.max(LEAST_S, until - from));
  }

  // Twice as long a stretch: about its middle, or until now.
  widen() {
    const [from, until] = this.span();
    if (this.spanS) this.choose(this.fromS === null ? null : from - (until - from) / 2, 2 * (until - from));
  }

  // What stands in the address after the screen's name: since when and how long, or how long until now.
  get address() {
    if (!this.spanS) return "/all";
    if (this.fromS !== null) return `/${new Date(Math.round(this.fromS) * 1000).toISOString().replace(".000", "")}/${Math.round(this.spanS)}`;
    return this.spanS === USUAL_S ? "" : `/now/${Math.round(this.spanS)}`;
  }

  goTo([begin = "now", seconds = USUAL_S]) {
    const from = begin === "now" || begin === "all" ? null : Date.parse(begin) / 1000;
    const span = begin === "all" ? 0 : Number(seconds);
    if (Number.isNaN(from) || !(begin === "all" || span >= LEAST_S)) {
      this.act.say(`need #timeline/TIME/SECONDS with a time such as 2026-11-25T21:00:00Z and ${LEAST_S} seconds or more`, false);
      return;
    }
    this.fromS = from;
    this.spanS = span;
  }

  open(members) {
    this.opened = members;
    this.update();
  }

  update() {
    const { known } = this;
    if (!known.run) return;
    const span = this.span();
    const moments = momentsOf(known);
    this.pick.value = SPANS.some(([, seconds]) => seconds === this.spanS) ? String(this.spanS) : "";
    const title = `${moment(span[0])} to ${this.fromS === null ? "now" : moment(span[1])}`;
    fill(this.title, title, () => title);
    this.link.href = `#timeline${this.address || `/now/${USUAL_S}`}`;
    this.lanes.draw(moments, span);
    const marks = [...lined(moments), ...this.opened.slice(0, 1).map(({ at }) => [at, "--ink"])];
    for (const name of this.metrics()) {
      if (!this.charts.has(name)) {
        const chart = new Chart(name, { span: () => this.span(), onSpan: (from, until) => this.choose(from, Math.max(LEAST_S, until - from)), group: "timeline" });
        this.charts.set(name, chart);
        this.plots.append(el("h3", { className: "faint" }, name), chart.place);
      }
      this.charts.get(name).draw(known.series.get(name), marks);
    }
    this.tell();
  }

  tell() {
    const stories = [...new Set(this.opened.filter(({ story }) => story).map(({ story }) => story.id))].map((id) => this.known.stories.get(id)).filter(Boolean);
    const lines = this.opened.filter(({ line }) => line).map(({ line }) => line);
    this.none.hidden = this.opened.length > 0;
    fill(this.detail, `${stories.map((story) => `${story.id} ${story.version}`)} ${lines.map((line) => line.version)}`, () => [...stories.slice(-MOST_OPENED).map((story) => storyItem(story)), ...lines.slice(-MOST_OPENED).map(lineItem)]);
  }
}
