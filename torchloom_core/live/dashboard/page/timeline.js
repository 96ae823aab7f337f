// The timeline: metrics and events on one axis of time, with an address for each stretch of it.

import { eventsOf, markLegend, marksOf, SYMBOLS } from "./annotations.js";
import { Chart, legend } from "./charts.js";
import { button, el, fill, moment } from "./dom.js";
import { EventTracks } from "./event_tracks.js";
import { USUAL_METRICS } from "./metrics.js";
import { keyOf, lineItem, storyItem } from "./record.js";

const MOST_CHARTS = 4;
const USUAL_S = 900;
const LEAST_S = 2;
const YOUNG_S = 30;
const MOST_OPENED = 30;
const SPANS = [["5 minutes", 300], ["15 minutes", USUAL_S], ["1 hour", 3600], ["6 hours", 21600], ["1 day", 86400], ["whole run", 0]];

export class TimelineScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.spanS = USUAL_S; // 0: the whole run
    this.fromS = null; // null: ends now, and moves on
    this.sinceS = 0;
    this.opened = [];
    this.charts = new Map();
    this.tracks = new EventTracks((members) => this.open(members));
    this.pick = el("select", { "aria-label": "length of the time range", onchange: (event) => this.choose(this.spanS ? this.fromS : null, Number(event.target.value)) }, SPANS.map(([name, seconds]) => el("option", { value: String(seconds) }, name)), el("option", { value: "", disabled: true }, "custom"));
    this.link = el("a", {}, "link to this range");
    this.title = el("span", { className: "faint" });
    const buttons = [["earlier", () => this.move(-0.5)], ["later", () => this.move(0.5)], ["zoom out", () => this.widen()], ["now", () => this.choose(null, this.spanS || USUAL_S)]].map(([name, press]) => button(name, "", press));
    this.symbols = el("p", { className: "faint" });
    this.legend = el("div");
    this.plots = el("div", { className: "charts column" });
    this.detail = el("ol", { className: "record", "aria-live": "polite" });
    this.none = el("p", { className: "faint" }, "Select a mark with the mouse, or with Tab, the arrows and Enter. Drag in a chart to zoom in; double-click to see the whole run.");
    this.parts = [
      el("section", { className: "wide", "aria-label": "Timeline" }, el("div", { className: "row" }, el("h2", {}, "Timeline"), this.pick, buttons, this.link, this.title), this.tracks.place, this.symbols, this.plots, this.legend),
      el("section", { className: "wide", "aria-label": "Details of the mark" }, el("h2", {}, "Details of the mark"), this.none, this.detail),
    ];
  }

  metrics() {
    const there = this.store.run?.metrics ?? [];
    const chosen = USUAL_METRICS.filter((name) => there.includes(name));
    return (chosen.length ? chosen : there).slice(0, MOST_CHARTS);
  }

  // Where the series begin: changed only where that makes them finer, or reaches further back.
  wanted() {
    const [from] = this.span();
    if (!this.spanS) this.sinceS = 0;
    else if (from < this.sinceS || from > this.sinceS + this.spanS) this.sinceS = Math.max(0, Math.floor(from) - 1);
    return { series: this.metrics(), since_s: this.sinceS };
  }

  // A run younger than the range fills it.
  span() {
    const now = this.store.run?.now_s ?? 0;
    const first = Math.min(this.first(), now - LEAST_S);
    if (!this.spanS) return [first, now];
    if (this.fromS !== null) return [this.fromS, this.fromS + this.spanS];
    return [Math.max(now - this.spanS, Math.min(first, now - YOUNG_S)), now];
  }

  // The first moment that the page has data of.
  first() {
    const { lines, stories, series } = this.store;
    const firsts = [lines[0]?.at_s, ...[...stories.values()].map((story) => story.at_s), ...this.metrics().map((name) => series.get(name)?.[0]?.[0])];
    return firsts.filter(Number.isFinite).reduce((one, other) => Math.min(one, other), Infinity);
  }

  choose(fromS, spanS) {
    this.fromS = spanS ? fromS : null;
    this.spanS = spanS;
    this.update();
    this.act.select();
    this.act.remember();
  }

  zoom(span) {
    if (span) this.choose(span[0], Math.max(LEAST_S, span[1] - span[0]));
    else this.choose(null, 0);
  }

  move(share) {
    const [from, until] = this.span();
    const length = Math.max(LEAST_S, this.fromS === null && this.spanS ? this.spanS : until - from);
    this.choose(until - length + share * length, length);
  }

  // Twice as long a range: about its middle, or until now.
  widen() {
    const [from, until] = this.span();
    if (this.spanS) this.choose(this.fromS === null ? null : from - (until - from) / 2, 2 * (this.fromS === null ? this.spanS : until - from));
  }

  // The part of the address after the screen's name: a begin and a length, or a length until now.
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
    const { store } = this;
    if (!store.run) return;
    const span = this.span();
    const events = eventsOf(store);
    this.pick.value = SPANS.some(([, seconds]) => seconds === this.spanS) ? String(this.spanS) : "";
    const title = `${moment(span[0])} to ${this.fromS === null ? "now" : moment(span[1])} (${Intl.DateTimeFormat().resolvedOptions().timeZone})`;
    fill(this.title, title, () => title);
    this.link.href = `#timeline${this.address || `/now/${USUAL_S}`}`;
    this.tracks.draw(events, span);
    const visible = events.filter(({ at }) => at >= span[0] && at <= span[1]);
    const glyphs = [...SYMBOLS.keys()].filter((glyph) => visible.some((event) => event.glyph === glyph));
    fill(this.symbols, glyphs.join(), () => (glyphs.length ? glyphs.map((glyph) => el("span", { className: "key" }, `${glyph} ${SYMBOLS.get(glyph)}`)) : "No events in this range."));
    const marks = marksOf(events);
    const entries = markLegend(marksOf(visible));
    fill(this.legend, entries.join(), () => legend(entries));
    if (this.opened.length) marks.push({ at: this.opened[0].at, colour: "--warn", text: "the selected mark", label: "selected" });
    for (const name of this.metrics()) {
      if (!this.charts.has(name)) {
        const chart = new Chart(name, { span: () => this.span(), onSpan: (one) => this.zoom(one), group: "timeline" });
        this.charts.set(name, chart);
        this.plots.append(chart.place);
      }
      this.charts.get(name).draw(store.series.get(name), marks);
    }
    this.showDetails();
  }

  showDetails() {
    const stories = [...new Set(this.opened.filter(({ story }) => story).map(({ story }) => story.id))].map((id) => this.store.stories.get(id)).filter(Boolean);
    const lines = this.opened.filter(({ line }) => line).map(({ line }) => line);
    this.none.hidden = this.opened.length > 0;
    fill(this.detail, `${this.act.lock()} ${stories.map(keyOf)} ${lines.map((line) => line.version)}`, () => [...stories.slice(-MOST_OPENED).map((story) => storyItem(story, this.act)), ...lines.slice(-MOST_OPENED).map(lineItem)]);
  }
}
