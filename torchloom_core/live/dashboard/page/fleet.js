// Fleet: every rank as a cell, the ranks that differ, and one rank in detail.

import { ratioColour, SLOW, STATE_COLOURS, USUAL, VALUE_COLOURS } from "./colours.js";
import { button, el, fill, many, section, swatch } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { isTime, titleOf, valueOf } from "./metrics.js";
import { OneWorker } from "./worker.js";

const MOST_NAMES = 50;
const ENDS = 5;
const BY_NAME = new Intl.Collator(undefined, { numeric: true });
const BAD = ["failed", "unreachable"];

// Rows that a text may mean: exact worker names first, then exact groups and places, then parts.
function rowsOf(places, text) {
  const wanted = text.toLowerCase();
  const ways = [(place) => place[0].toLowerCase() === wanted, (place) => place.some((name) => name.toLowerCase() === wanted), (place) => place.some((name) => name.toLowerCase().includes(wanted))];
  for (const way of ways) {
    const rows = [...places.keys()].filter((row) => way(places[row]));
    if (rows.length) return rows.sort((one, other) => BY_NAME.compare(places[one][0], places[other][0]));
  }
  return [];
}

export class FleetScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.metric = "";
    this.one = new OneWorker(store, act);
    this.map = new HeatMap(store, (row) => this.open(row), (text) => act.say(text, true));
    this.pickMetric = el("select", { onchange: (event) => this.colourBy(event.target.value) });
    this.pickGroup = el("select", { onchange: (event) => { this.map.by = event.target.value; this.map.paint(); } }, ["group", "node", "rack", "role", "none"].map((name) => el("option", { value: name }, name)));
    this.names = el("datalist", { id: "worker-names" });
    this.find = el("input", { type: "search", id: "find-worker", list: "worker-names", placeholder: "worker, group or node", "aria-label": "find a worker", oninput: (event) => this.suggest(event.target.value), onchange: (event) => this.openNamed(event.target.value) });
    this.legend = el("p", { className: "faint" });
    this.slow = el("div");
    this.bad = el("div");
    this.highest = this.buttons();
    this.lowest = this.buttons();
    this.extremes = section("Highest and lowest", {}, this.line("Highest", this.highest), this.line("Lowest", this.lowest));
    this.parts = [
      el("section", { className: "wide", "aria-label": "Workers" }, el("div", { className: "row" }, el("h2", {}, "Workers"), el("label", {}, "Colour by ", this.pickMetric), el("label", {}, "Group by ", this.pickGroup), el("label", {}, "Find ", this.find), this.names), this.legend, this.map.canvas, el("p", { className: "faint" }, "Select a worker for its values, its record and its actions.")),
      section("Slow", { className: "narrow" }, this.slow),
      section("Failed or unreachable", { className: "narrow" }, this.bad),
      this.extremes,
      ...this.one.parts,
    ];
  }

  wanted() {
    return { metric: this.metric || null, worker: this.one.name || null };
  }

  colourBy(metric) {
    this.metric = this.map.metric = metric;
    this.store.channels[1] = new Uint8Array(0);
    this.store.extremes = new Map();
    this.act.select();
    this.map.paint();
  }

  open(row) {
    const place = this.store.places[row];
    if (!place) return;
    this.one.choose(place[0]);
    this.act.select();
    this.update();
  }

  openNamed(name) {
    const wanted = name.trim();
    if (!wanted) return;
    const rows = rowsOf(this.store.places, wanted);
    if (!rows.length) return this.act.say(`no worker, group or node matches ${wanted}`, false);
    if (rows.length > 1) this.act.say(`${this.store.places[rows[0]][0]}, the first of ${rows.length} matches of ${wanted}`);
    this.open(rows[0]);
  }

  suggest(name) {
    const rows = rowsOf(this.store.places, name.trim()).slice(0, MOST_NAMES);
    fill(this.names, rows.join(), () => rows.map((row) => el("option", { value: this.store.places[row][0] })));
  }

  update() {
    const { store } = this;
    const { run } = store;
    if (!run) return;
    const names = Object.keys(run.counts);
    fill(this.pickMetric, run.metrics.join(), () => ["", ...run.metrics].map((name) => el("option", { value: name, selected: name === this.metric }, name ? titleOf(name) : "State")));
    fill(this.legend, JSON.stringify([this.metric, store.scale, store.median, run.counts, run.leaves_out, run.slow.length]), () => this.legendOf(names));
    this.map.paint();
    const reason = run.health.reasons.map(([, text]) => text).find((text) => text.includes(" slow rank"));
    fill(this.slow, `${reason} ${run.slow}`, () => this.slowParts(reason));
    const bad = [];
    store.channels[0].forEach((code, row) => { if (BAD.includes(names[code])) bad.push(row); });
    bad.sort((a, b) => BY_NAME.compare(store.places[a]?.[0], store.places[b]?.[0]));
    fill(this.bad, `${store.placesVersion} ${bad.slice(0, 200).join()} ${bad.length}`, () => this.badParts(bad, names));
    this.extremes.hidden = !this.metric;
    this.showExtremes();
    this.one.update();
  }

  // The buttons stay while their numbers change: no click is lost.
  buttons() {
    return Array.from({ length: ENDS }, () => el("button", { type: "button", onclick: (event) => this.open(Number(event.currentTarget.dataset.row)) }));
  }

  line(title, buttons) {
    return el("div", { className: "row" }, el("span", { className: "faint" }, title), buttons);
  }

  key(colour, text) {
    return el("span", { className: "key" }, swatch(colour), text);
  }

  legendOf(names) {
    const { scale, median, run } = this.store;
    const marks = [run.slow.length ? this.key(SLOW, "framed: slow ") : null, names.some((name) => BAD.includes(name) && run.counts[name]) ? "crossed out: failed or unreachable " : null, run.leaves_out ? "more metrics are reported than are stored " : null];
    if (!this.metric) return [...names.filter((name) => run.counts[name]).map((name) => this.key(STATE_COLOURS[name], `${name} ${run.counts[name]}`)), ...marks];
    const value = (share) => valueOf(this.metric, Number(share.toPrecision(3)));
    if (!this.map.isAnchored()) return [this.key(VALUE_COLOURS[1], value(scale.low)), this.key(VALUE_COLOURS[128], "…"), this.key(VALUE_COLOURS[255], value(scale.high)), "outlined: no value ", ...marks];
    const far = run.slow_ratio;
    const word = isTime(this.metric) ? "slow, above" : "above";
    return [
      this.key(ratioColour(0.5, far), `half the median: ${value(0.5 * median)}`),
      this.key(ratioColour(1, far), `within 10 % of the median: ${value(median / USUAL)} to ${value(USUAL * median)}`),
      this.key(ratioColour((USUAL + far) / 2, far), `up to ${far}× the median`),
      this.key(ratioColour(far + 1, far), `${word} ${far}× the median: ${value(far * median)}`),
      "outlined: no value ",
      ...marks,
    ];
  }

  button(row, more = "") {
    return button(this.store.places[row][0] + more, "", () => this.open(row));
  }

  slowParts(reason) {
    const rows = this.store.run.slow.filter((row) => this.store.places[row]);
    if (!rows.length) return el("p", { className: "good" }, `None above ${this.store.run.slow_ratio}× the median for 10 s.`);
    return [el("p", { className: "warn" }, reason ?? ""), el("div", { className: "row" }, rows.slice(0, 20).map((row) => this.button(row, " slow")))];
  }

  badParts(bad, names) {
    if (!bad.length) return el("p", { className: "good" }, "None.");
    const racks = new Map();
    for (const row of bad) {
      const [, group, node, rack] = this.store.places[row] ?? [];
      const above = rack ? `in rack ${rack}` : node ? `on node ${node}` : `in group ${group}`;
      racks.set(above, (racks.get(above) ?? 0) + 1);
    }
    const counts = [...racks].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([name, count]) => `${count} ${name}`);
    return [el("p", { className: "bad" }, `${many(bad.length, "worker")}: ${counts.join(", ")}${racks.size > 12 ? ", ..." : ""}`), el("div", { className: "row" }, bad.slice(0, 60).filter((row) => this.store.places[row]).map((row) => this.button(row, ` ${names[this.store.channels[0][row]]}`)))];
  }

  showExtremes() {
    const rows = [...this.store.extremes.keys()].filter((row) => this.store.places[row]);
    const half = Math.min(ENDS, Math.ceil(rows.length / 2)); // none is both
    this.show(this.highest, rows.slice(0, half));
    this.show(this.lowest, rows.slice(Math.max(half, rows.length - ENDS)).reverse());
  }

  show(buttons, rows) {
    const { median } = this.store;
    buttons.forEach((one, i) => {
      one.hidden = rows[i] === undefined;
      if (one.hidden) return;
      one.dataset.row = rows[i];
      const value = this.store.extremes.get(rows[i]);
      const ratio = this.map.isAnchored() ? ` (${(value / median).toFixed(2)}× the median)` : "";
      one.textContent = `${this.store.places[rows[i]][0]} ${valueOf(this.metric, value)}${ratio}`;
    });
  }
}
