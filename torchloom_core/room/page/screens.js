// The screens: each makes its sections once, and then keeps them as the run is.

import { STATE_COLOURS, VALUE_COLOURS } from "./colours.js";
import { Chart } from "./charts.js";
import { clock, el, fill, number, span } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { Knobs } from "./knobs.js";
import { LandscapeScreen } from "./landscape.js";
import { lined, momentsOf } from "./moments.js";
import { PolicyScreen } from "./policies.js";
import { WhatIf } from "./preview.js";
import { lineItem, logItem, state, storyItem } from "./record.js";
import { shares, spentParts } from "./spent.js";
import { TimelineScreen } from "./timeline.js";
import { OneWorker } from "./worker.js";

const FIRST_METRICS = ["loss", "grad_norm", "update_norm", "step_time_s", "tokens_per_s", "samples_per_s"];
const MOST_CHARTS = 6;
const MOST_ITEMS = 150;
const MOST_MARKS = 100;
const BAD = ["failed", "silent"];
const LEVELS = ["debug", "info", "warning", "error", "critical"];

function section(title, ...children) {
  return el("section", { "aria-label": title }, el("h2", {}, title), children);
}

function newest(known, count) {
  return [...known.stories.values()].slice(-count).reverse();
}

export class RunScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.charts = new Map();
    this.well = el("div");
    this.waiting = el("div");
    this.stories = el("ol", { className: "record" });
    this.plugins = el("div");
    this.risk = el("div");
    this.spent = el("div");
    this.chartPlace = el("section", { className: "wide", "aria-label": "Series" }, el("h2", {}, "Series: median of all ranks, and from the least to the most"));
    this.parts = [section("Is the run well?", this.well), section("Waiting for a person", this.waiting), section("Where the ranks' time went", this.spent), this.chartPlace, section("Newest decisions", this.stories), section("Most at risk", this.risk), section("Policies and predictors", this.plugins)];
  }

  wanted() {
    const there = this.known.run?.metrics ?? [];
    const series = FIRST_METRICS.filter((name) => there.includes(name));
    for (const name of there) if (series.length < MOST_CHARTS && !series.includes(name)) series.push(name);
    return { series: series.slice(0, MOST_CHARTS) };
  }

  update() {
    const { known } = this;
    const { run } = known;
    if (!run) return;
    const status = run.status ?? {};
    const kept = shares(run.spent)?.of.kept;
    fill(this.spent, JSON.stringify(shares(run.spent)), () => spentParts(run.spent));
    fill(this.well, JSON.stringify([kept, run.counts, run.step, run.stalled, status.stopped, status.dry_run, status.cordoned, status.lighthouse, status.malformed, status.flights_in_all]), () => {
      const counts = Object.entries(run.counts).filter(([, count]) => count);
      const tiles = [el("li", {}, el("b", {}, String(run.step)), "step"), kept && el("li", {}, el("b", {}, `${kept} %`), "of time in kept steps"), ...counts.map(([name, count]) => el("li", { className: BAD.includes(name) ? "bad" : "" }, el("b", {}, String(count)), name))];
      const lines = [];
      if (run.stalled) lines.push(["bad", run.stalled]);
      if (status.stopped) lines.push(["bad", "Actions are stopped: nothing is granted until they are resumed."]);
      if (status.dry_run) lines.push(["warn", "Dry run: what is granted is not done."]);
      if (status.flights_in_all) lines.push(["", `${status.flights_in_all} commands are under way.`]);
      if (status.cordoned?.length) lines.push(["warn", `Cordoned: ${status.cordoned.join(", ")}`]);
      if (status.lighthouse) lines.push(["", `Lighthouse: ${status.lighthouse}`]);
      if (status.malformed) lines.push(["warn", `${status.malformed} messages were none of ours.`]);
      return [el("ul", { className: "tiles" }, tiles), ...lines.map(([tone, text]) => el("p", { className: tone }, text))];
    });
    const locked = this.act.isLocked();
    fill(this.waiting, JSON.stringify([status.waiting, locked]), () => this.proposals(status.waiting ?? [], locked));
    fill(this.risk, JSON.stringify(status.at_risk), () => {
      const worst = [...(status.at_risk ?? [])].sort((a, b) => b.hazard - a.hazard).slice(0, 8);
      if (!worst.length) return el("p", { className: "faint" }, "Nobody, by any predictor that is active.");
      return el("table", {}, el("tbody", {}, worst.map((one) => el("tr", {}, el("th", { scope: "row" }, one.worker), el("td", {}, `${(100 * one.hazard).toFixed(0)} % within ${span(one.horizon_s)}`), el("td", { className: "faint" }, `${one.predictor}${one.why ? `: ${one.why}` : ""}`)))));
    });
    const stories = newest(known, 8);
    fill(this.stories, stories.map((story) => story.version).join(), () => stories.map((story) => el("li", {}, el("p", {}, el("b", {}, story.by), " wants ", el("b", {}, story.wish)), el("p", { className: "faint" }, state(story)))));
    fill(this.plugins, JSON.stringify(status.plugins), () =>
      el("table", {}, el("tbody", {}, (status.plugins ?? []).map((one) => el("tr", {}, el("th", { scope: "row" }, one.name), el("td", {}, one.kind), el("td", { className: one.state === "quarantined" ? "bad" : "" }, one.state), el("td", {}, one.detail))))));
    const marks = lined(momentsOf(known)).slice(-MOST_MARKS);
    for (const name of this.wanted().series) {
      if (!this.charts.has(name)) {
        const chart = new Chart(name);
        this.charts.set(name, chart);
        this.chartPlace.append(el("h3", { className: "faint" }, name), chart.place);
      }
      this.charts.get(name).draw(known.series.get(name), marks);
    }
  }

  proposals(waiting, locked) {
    if (!waiting.length) return el("p", { className: "faint" }, "Nothing: what no one approves in time is not done.");
    return waiting.map((one) => {
      const price = `gains ${number(one.gain_gpu_s)} GPU-s with probability ${number(one.confidence)}, costs ${number(one.cost_gpu_s)}; not approved by ${clock(one.until_ns / 1e9)} it is not done`;
      return el("div", {}, el("p", {}, el("b", {}, one.policy), ` wants ${one.wish}: ${one.reason}`), el("p", { className: "faint" }, price),
        el("button", { disabled: locked, onclick: () => this.act.ask("approve", { proposal: one.proposal }) }, `approve ${one.proposal}`));
    });
  }
}

export class FleetScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.metric = "";
    this.one = new OneWorker(known, act);
    this.map = new HeatMap(known, (row) => this.open(row), (text) => act.say(text, true));
    this.pickMetric = el("select", { "aria-label": "paint by", onchange: (event) => this.paintBy(event.target.value) });
    this.pickGroup = el("select", { "aria-label": "group by", onchange: (event) => { this.map.by = event.target.value; this.map.paint(); } }, ["group", "node", "rack", "none"].map((name) => el("option", { value: name }, name)));
    this.find = el("input", { type: "search", id: "find-worker", placeholder: "worker", "aria-label": "find a worker", onchange: (event) => this.openNamed(event.target.value) });
    this.legend = el("p", { className: "faint" });
    this.bad = el("div");
    this.most = this.buttons();
    this.least = this.buttons();
    this.extremes = el("div", {}, el("p", { className: "faint" }, "Paint by a metric to see whose is the most and the least."), this.line("most", this.most), this.line("least", this.least));
    this.parts = [
      el("section", { className: "wide", "aria-label": "Workers" }, el("div", { className: "row" }, el("h2", {}, "Workers"), el("label", {}, "painted by ", this.pickMetric), el("label", {}, "grouped by ", this.pickGroup), el("label", {}, "find ", this.find)), this.legend, this.map.canvas),
      section("Failed or silent", this.bad),
      section("Farthest out", this.extremes),
      ...this.one.parts,
    ];
  }

  wanted() {
    return { metric: this.metric || null, worker: this.one.name || null };
  }

  paintBy(metric) {
    this.metric = this.map.metric = metric;
    this.known.channels[1] = new Uint8Array(0);
    this.known.farthest = new Map();
    this.act.look();
    this.map.paint();
  }

  open(row) {
    const place = this.known.places[row];
    if (!place) return;
    this.one.choose(place[0]);
    this.act.look();
    this.update();
  }

  openNamed(name) {
    const row = this.known.places.findIndex((place) => place[0] === name.trim());
    if (row < 0) this.act.say(`no worker is called ${name}`, false);
    else this.open(row);
  }

  update() {
    const { known } = this;
    if (!known.run) return;
    const names = Object.keys(known.run.counts);
    fill(this.pickMetric, known.run.metrics.join(), () => ["", ...known.run.metrics].map((name) => el("option", { value: name, selected: name === this.metric }, name || "state")));
    fill(this.legend, JSON.stringify([this.metric, known.scale, known.run.counts, known.run.leaves_out]), () => this.legendOf(names));
    this.map.paint();
    const bad = [];
    known.channels[0].forEach((code, row) => { if (BAD.includes(names[code])) bad.push(row); });
    fill(this.bad, `${known.placesVersion} ${bad.slice(0, 200).join()} ${bad.length}`, () => this.badOf(bad, names));
    this.showExtremes();
    this.one.update();
  }

  // Kept as they are while numbers change: a click is not lost.
  buttons() {
    return Array.from({ length: 5 }, () => el("button", { onclick: (event) => this.open(Number(event.currentTarget.dataset.row)) }));
  }

  line(title, buttons) {
    return el("div", { className: "row" }, el("span", { className: "faint" }, title), buttons);
  }

  legendOf(names) {
    if (!this.metric) return names.filter((name) => this.known.run.counts[name]).map((name) => el("span", {}, this.swatch(STATE_COLOURS[name]), `${name} ${this.known.run.counts[name]} `));
    const { low, high } = this.known.scale;
    return [this.swatch(VALUE_COLOURS[1]), `${number(low)} `, this.swatch(VALUE_COLOURS[128]), "… ", this.swatch(VALUE_COLOURS[255]), `${number(high)}; crossed out: failed or silent`, this.known.run.leaves_out ? "; more metrics are told than are kept" : ""];
  }

  swatch(colour) {
    const made = el("span", { className: "swatch" });
    made.style.background = colour;
    return made;
  }

  button(row, more = "") {
    return el("button", { onclick: () => this.open(row) }, this.known.places[row][0] + more);
  }

  badOf(bad, names) {
    if (!bad.length) return el("p", { className: "good" }, "None.");
    const racks = new Map();
    for (const row of bad) {
      const [, group, node, rack] = this.known.places[row] ?? [];
      const above = rack || node || group;
      racks.set(above, (racks.get(above) ?? 0) + 1);
    }
    const told = [...racks].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([name, count]) => `${name} ${count}`);
    return [el("p", { className: "bad" }, `${bad.length}: ${told.join(", ")}${racks.size > 12 ? ", ..." : ""}`), el("div", { className: "row" }, bad.slice(0, 60).filter((row) => this.known.places[row]).map((row) => this.button(row, ` ${names[this.known.channels[0][row]]}`)))];
  }

  showExtremes() {
    const rows = [...this.known.farthest.keys()].filter((row) => this.known.places[row]);
    const [hint, ...lines] = this.extremes.children;
    hint.hidden = Boolean(this.metric);
    for (const line of lines) line.hidden = !this.metric;
    this.show(this.most, rows.slice(0, 5));
    this.show(this.least, rows.slice(-5).reverse());
  }

  show(buttons, rows) {
    buttons.forEach((button, i) => {
      button.hidden = rows[i] === undefined;
      if (button.hidden) return;
      button.dataset.row = rows[i];
      button.textContent = `${this.known.places[rows[i]][0]} ${number(this.known.farthest.get(rows[i]))}`;
    });
  }
}

export class KnobScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.whatIf = new WhatIf(known, act);
    this.knobs = new Knobs(act, (knob, value) => this.whatIf.try(knob, value));
    this.none = el("p", { className: "faint" }, "No worker has told of a knob.");
    this.run = el("div", { className: "row" });
    this.parts = [el("section", { className: "wide", "aria-label": "The whole run" }, el("h2", {}, "The whole run"), this.run), el("section", { className: "wide", "aria-label": "Knobs" }, el("h2", {}, "Knobs"), this.none, this.knobs.table), this.whatIf.part];
  }

  wanted() {
    return this.whatIf.wanted();
  }

  update() {
    const locked = this.act.isLocked();
    const stopped = Boolean(this.known.run?.status?.stopped);
    fill(this.run, `${locked} ${stopped}`, () => {
      const acts = [["pause", { kind: "pause" }], ["resume training", { kind: "resume" }], ["checkpoint now", { kind: "checkpoint" }], ["rewind to the last checkpoint", { kind: "rewind" }]];
      const buttons = acts.map(([text, action]) => el("button", { disabled: locked, onclick: () => this.act.ask("propose", { action }) }, text));
      return [...buttons, el("button", { disabled: locked || !stopped, onclick: () => this.act.ask("actions.resume") }, "resume actions")];
    });
    this.none.hidden = this.known.knobs.length > 0;
    this.knobs.table.hidden = !this.none.hidden;
    this.knobs.update(this.known.knobs, locked);
    this.whatIf.update();
  }
}

export class RecordScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.filter = "";
    this.stories = el("ol", { className: "record" });
    this.lines = el("ol", { className: "record" });
    const find = el("input", { type: "search", "aria-label": "only what has this text", placeholder: "only with this text", oninput: (event) => { this.filter = event.target.value.toLowerCase(); this.update(); } });
    const text = el("input", { "aria-label": "something for the record", placeholder: "for the record", maxlength: "2000", required: true });
    const remark = el("form", { className: "row", onsubmit: (event) => { event.preventDefault(); act.ask("remark", { text: text.value }); text.value = ""; } }, text, el("button", { type: "submit" }, "put on record"));
    this.parts = [el("section", { className: "wide", "aria-label": "The record" }, el("div", { className: "row" }, find, remark)), section("Decisions", this.stories), section("What else happened", this.lines)];
  }

  wanted() {
    return {};
  }

  update() {
    const { known, filter } = this;
    const has = (one) => !filter || JSON.stringify(one).toLowerCase().includes(filter);
    const stories = [...known.stories.values()].filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.stories, stories.map((story) => `${story.id} ${story.version}`).join(), () => stories.map((story) => storyItem(story)));
    const lines = known.lines.filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.lines, lines.map((line) => line.version).join(), () => lines.map(lineItem));
  }
}

export class LogScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.filter = "";
    this.from = "debug";
    this.lines = el("ol", { className: "record" });
    const find = el("input", { type: "search", "aria-label": "only lines with this text", placeholder: "worker, or text", oninput: (event) => { this.filter = event.target.value.toLowerCase(); this.update(); } });
    const level = el("select", { "aria-label": "so loud or louder", onchange: (event) => { this.from = event.target.value; this.update(); } }, LEVELS.map((name) => el("option", { value: name }, name)));
    this.parts = [el("section", { className: "wide", "aria-label": "Logs of trainers" }, el("div", { className: "row" }, el("h2", {}, "Logs of trainers"), find, el("label", {}, "from ", level)), el("p", { className: "faint" }, "How loud a line has to be that it comes this far, TORCHLOOM_TRAINER_LOG of the trainer says, and the knob log_level."), this.lines)];
  }

  wanted() {
    return {};
  }

  update() {
    const quiet = LEVELS.slice(0, LEVELS.indexOf(this.from));
    const has = (line) => !quiet.includes(line.kind) && (!this.filter || `${line.worker} ${line.text}`.toLowerCase().includes(this.filter));
    const lines = this.known.logs.filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.lines, lines.map((line) => line.version).join(), () => lines.map(logItem));
  }
}

export const SCREENS = [["Run", RunScreen], ["Fleet", FleetScreen], ["Knobs", KnobScreen], ["Record", RecordScreen], ["Logs", LogScreen], ["Timeline", TimelineScreen], ["Policies", PolicyScreen], ["Landscape", LandscapeScreen]];
