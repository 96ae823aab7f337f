// The screens: each makes its sections once, and then keeps them as the run is.

import { STATE_COLOURS, VALUE_COLOURS } from "./colours.js";
import { Chart, lineLegend, USUAL_METRICS } from "./charts.js";
import { button, clock, el, fill, lock, many, number, span } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { Knobs, shown } from "./knobs.js";
import { LandscapeScreen } from "./landscape.js";
import { freshId } from "./link.js";
import { lined, momentsOf } from "./moments.js";
import { PolicyScreen } from "./policies.js";
import { WhatIf } from "./preview.js";
import { LogScreen, RecordScreen } from "./reading.js";
import { state, wished } from "./record.js";
import { shares, spentParts } from "./spent.js";
import { TimelineScreen } from "./timeline.js";
import { OneWorker } from "./worker.js";

const MOST_CHARTS = 6;
const MOST_MARKS = 100;
const MOST_NAMES = 50;
const BY_NAME = new Intl.Collator(undefined, { numeric: true });
const BAD = ["failed", "silent"];

// What can be asked of all ranks, and what a person is asked back first.
const FOR_ALL = [
  ["pause", "pause", "Pause the training of all ranks?"],
  ["resume training", "resume"],
  ["checkpoint now", "checkpoint"],
  ["rewind to the last checkpoint", "rewind", "Have all ranks go back to the last checkpoint? The steps since then are lost."],
];

function section(title, ...children) {
  return el("section", { "aria-label": title }, el("h2", {}, title), children);
}

function crashLoop({ worker, node, failed, restart, most, error, gave_up }) {
  const end = gave_up ? "; the launcher has given up" : "";
  return `Crash-looping since ${worker} ended: ${many(failed, "restart")} on ${node} ended before they attached, the last was ${restart} of ${most}: ${error}${end}`;
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
    this.ages = [];
    this.stories = el("ol", { className: "record" });
    this.plugins = el("div");
    this.risk = el("div");
    this.spent = el("div");
    this.chosen = "";
    this.pick = el("select", { onchange: (event) => { this.chosen = event.target.value; act.look(); this.update(); } });
    this.chartPlace = el("section", { className: "wide", "aria-label": "Series" }, el("div", { className: "row" }, el("h2", {}, "Series: median of all ranks, and from the least to the most"), el("label", {}, "and ", this.pick)), lineLegend());
    this.parts = [section("Is the run well?", this.well), section("Waiting for a person", this.waiting), section("Where the ranks' time went", this.spent), this.chartPlace, section("Newest decisions", this.stories), section("Most at risk", this.risk), section("Policies and predictors", this.plugins)];
  }

  wanted() {
    const usual = this.usual();
    return { series: this.chosen ? [...usual, this.chosen] : usual };
  }

  usual() {
    const there = this.known.run?.metrics ?? [];
    const usual = USUAL_METRICS.filter((name) => there.includes(name));
    return usual.length ? usual : there.slice(0, MOST_CHARTS);
  }

  update() {
    const { known } = this;
    const { run } = known;
    if (!run) return;
    const status = run.status ?? {};
    const kept = shares(run.spent)?.of.kept;
    fill(this.spent, JSON.stringify(shares(run.spent)), () => spentParts(run.spent));
    fill(this.well, JSON.stringify([kept, run.counts, run.step, run.stalled, run.slow, status.crash_loops, status.stopped, status.dry_run, status.recording, status.cordoned, status.lighthouse, status.malformed, status.flights_in_all]), () => {
      const counts = Object.entries(run.counts).filter(([, count]) => count);
      const tiles = [el("li", {}, el("b", {}, String(run.step)), "step"), kept && el("li", {}, el("b", {}, `${kept} %`), "of time in kept steps"), ...counts.map(([name, count]) => el("li", { className: BAD.includes(name) ? "bad" : "" }, el("b", {}, String(count)), name))];
      const lines = [];
      for (const loop of status.crash_loops ?? []) lines.push(["bad", crashLoop(loop)]);
      if (run.stalled) lines.push(["bad", run.stalled]);
      if (run.slow) lines.push(["warn", run.slow]);
      if (status.stopped) lines.push(["bad", "Actions are stopped: nothing is granted until they are resumed."]);
      if (status.dry_run) lines.push(["warn", "Dry run: what is granted is not done."]);
      if (status.recording) lines.push(["bad", `Recording is ${status.recording}`]);
      if (status.flights_in_all) lines.push(["", `${status.flights_in_all} commands are under way.`]);
      if (status.cordoned?.length) lines.push(["warn", `Cordoned: ${status.cordoned.join(", ")}`]);
      if (status.lighthouse) lines.push(["", `Lighthouse: ${status.lighthouse}`]);
      if (status.malformed) lines.push(["warn", `${status.malformed} messages were none of ours.`]);
      return [el("ul", { className: "tiles" }, tiles), ...lines.map(([tone, text]) => el("p", { className: tone }, text))];
    });
    const why = this.act.lock();
    fill(this.waiting, JSON.stringify([status.waiting, status.knobs_waiting, why]), () => [this.knobsWaiting(status.knobs_waiting ?? [], why), this.proposals(status.waiting ?? [], why)].flat());
    for (const { age, proposal } of this.ages) age.textContent = this.ageOf(this.known.stories.get(proposal));
    fill(this.risk, JSON.stringify(status.at_risk), () => {
      const worst = [...(status.at_risk ?? [])].sort((a, b) => b.hazard - a.hazard).slice(0, 8);
      if (!worst.length) return el("p", { className: "faint" }, "Nobody, by any predictor that is active.");
      return el("table", {}, el("tbody", {}, worst.map((one) => el("tr", {}, el("th", { scope: "row" }, one.worker), el("td", {}, `${(100 * one.hazard).toFixed(0)} % within ${span(one.horizon_s)}`), el("td", { className: "faint" }, `${one.predictor}${one.why ? `: ${one.why}` : ""}`)))));
    });
    const stories = newest(known, 8);
    fill(this.stories, stories.map((story) => story.version).join(), () => stories.map((story) => el("li", {}, el("p", {}, el("span", { className: "faint" }, `${clock(story.at_s)} `), wished(story)), el("p", { className: "faint" }, state(story)))));
    fill(this.plugins, JSON.stringify(status.plugins), () =>
      el("table", {}, el("tbody", {}, (status.plugins ?? []).map((one) => el("tr", {}, el("th", { scope: "row" }, one.name), el("td", {}, one.kind), el("td", { className: one.state === "quarantined" ? "bad" : "" }, one.state), el("td", {}, one.detail))))));
    const more = run.metrics.filter((name) => !this.usual().includes(name));
    fill(this.pick, more.join(), () => ["", ...more].map((name) => el("option", { value: name, selected: name === this.chosen }, name || "no other")));
    const marks = lined(momentsOf(known)).slice(-MOST_MARKS);
    const wanted = this.wanted().series;
    for (const [name, { title, chart }] of this.charts) title.hidden = chart.place.hidden = !wanted.includes(name);
    for (const name of wanted) {
      if (!this.charts.has(name)) {
        const made = { title: el("h3", { className: "faint" }, name), chart: new Chart(name) };
        this.charts.set(name, made);
        this.chartPlace.append(made.title, made.chart.place);
      }
      this.charts.get(name).chart.draw(known.series.get(name), marks);
    }
  }

  knobsWaiting(waiting, why) {
    return waiting.map(({ knob, value, worker, since_ns }) => {
      const whose = worker ? { knob, worker } : { knob };
      const told = `${knob} = ${shown(value)}${worker ? ` of ${worker}` : ""}, set in an earlier job at ${clock(since_ns / 1e9)}: this job trains with its own value`;
      return el("div", {}, el("p", { className: "warn" }, told), el("div", { className: "row" },
        button(`take ${knob}`, why, () => this.act.ask("knob.set", { ...whose, value, sure: true, id: freshId() })),
        button(`drop ${knob}`, why, () => this.act.ask("knob.unset", { ...whose, id: freshId() }))));
    });
  }

  proposals(waiting, why) {
    this.ages = [];
    if (!waiting.length) return el("p", { className: "faint" }, "No pending approvals. Proposals that nobody approves expire.");
    return waiting.map((one) => {
      const price = `gains ${number(one.gain_gpu_s)} GPU-s with probability ${number(one.confidence)}, costs ${number(one.cost_gpu_s)}; expires at ${clock(one.until_ns / 1e9)}, or once its reason no longer holds`;
      const age = el("p", { className: "faint" });
      this.ages.push({ age, proposal: one.proposal });
      return el("div", {}, el("p", {}, el("b", {}, one.policy), ` wants ${one.wish}: ${one.reason}`), age, el("p", { className: "faint" }, price),
        el("div", { className: "row" },
          button(`approve ${one.proposal}`, why, () => this.act.ask("approve", { proposal: one.proposal })),
          button(`deny ${one.proposal}`, why, () => this.deny(one.proposal))));
    });
  }

  deny(proposal) {
    const reason = prompt(`Deny ${proposal}. Why? The reason goes on the run's record; it may be left empty.`);
    if (reason !== null) this.act.request("deny", { proposal, reason }).then((answer) => this.act.tell(answer));
  }

  // It says how things stood when it was asked for; who came later does not know when that was.
  ageOf(story) {
    if (!story) return "";
    return `asked at ${clock(story.at_s)}, ${span(Math.max(0, this.known.run.now_s - story.at_s))} ago, and as it was then`;
  }
}

// Whom a text may mean, by name before by what they belong to, by all of a name before by a part.
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
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.metric = "";
    this.one = new OneWorker(known, act);
    this.map = new HeatMap(known, (row) => this.open(row), (text) => act.say(text, true));
    this.pickMetric = el("select", { onchange: (event) => this.paintBy(event.target.value) });
    this.pickGroup = el("select", { onchange: (event) => { this.map.by = event.target.value; this.map.paint(); } }, ["group", "node", "rack", "none"].map((name) => el("option", { value: name }, name)));
    this.names = el("datalist", { id: "worker-names" });
    this.find = el("input", { type: "search", id: "find-worker", list: "worker-names", placeholder: "worker, group or node", "aria-label": "find a worker", oninput: (event) => this.suggest(event.target.value), onchange: (event) => this.openNamed(event.target.value) });
    this.legend = el("p", { className: "faint" });
    this.bad = el("div");
    this.most = this.buttons();
    this.least = this.buttons();
    this.extremes = el("div", {}, el("p", { className: "faint" }, "Paint by a metric to see whose is the most and the least."), this.line("most", this.most), this.line("least", this.least));
    this.parts = [
      el("section", { className: "wide", "aria-label": "Workers" }, el("div", { className: "row" }, el("h2", {}, "Workers"), el("label", {}, "painted by ", this.pickMetric), el("label", {}, "grouped by ", this.pickGroup), el("label", {}, "find ", this.find), this.names), this.legend, this.map.canvas),
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
    const wanted = name.trim();
    if (!wanted) return;
    const rows = rowsOf(this.known.places, wanted);
    if (!rows.length) return this.act.say(`no worker, group or node is called anything like ${wanted}`, false);
    if (rows.length > 1) this.act.say(`${this.known.places[rows[0]][0]}, the first of ${rows.length} that ${wanted} may mean`);
    this.open(rows[0]);
  }

  suggest(name) {
    const rows = rowsOf(this.known.places, name.trim()).slice(0, MOST_NAMES);
    fill(this.names, rows.join(), () => rows.map((row) => el("option", { value: this.known.places[row][0] })));
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
    bad.sort((a, b) => BY_NAME.compare(known.places[a]?.[0], known.places[b]?.[0]));
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
      const above = rack ? `in rack ${rack}` : node ? `on node ${node}` : `of group ${group}`;
      racks.set(above, (racks.get(above) ?? 0) + 1);
    }
    const told = [...racks].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([name, count]) => `${count} ${name}`);
    return [el("p", { className: "bad" }, `${many(bad.length, "worker")}: ${told.join(", ")}${racks.size > 12 ? ", ..." : ""}`), el("div", { className: "row" }, bad.slice(0, 60).filter((row) => this.known.places[row]).map((row) => this.button(row, ` ${names[this.known.channels[0][row]]}`)))];
  }

  showExtremes() {
    const rows = [...this.known.farthest.keys()].filter((row) => this.known.places[row]);
    const [hint, ...lines] = this.extremes.children;
    hint.hidden = Boolean(this.metric);
    for (const line of lines) line.hidden = !this.metric;
    const half = Math.min(5, Math.ceil(rows.length / 2)); // nobody is both
    this.show(this.most, rows.slice(0, half));
    this.show(this.least, rows.slice(Math.max(half, rows.length - 5)).reverse());
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
    this.none = el("p", { className: "faint" });
    this.why = el("p", { className: "faint" });
    this.run = el("div", { className: "row" }, FOR_ALL.map(([text, kind, question]) => button(text, "", () => act.propose({ kind }, question))));
    this.parts = [el("section", { className: "wide", "aria-label": "The whole run" }, el("h2", {}, "The whole run"), this.run, this.why), el("section", { className: "wide", "aria-label": "Knobs" }, el("h2", {}, "Knobs"), this.none, this.knobs.table), this.whatIf.part];
  }

  wanted() {
    return this.whatIf.wanted();
  }

  update() {
    const why = this.act.lock();
    for (const one of this.run.children) lock(one, why);
    fill(this.why, why, () => why && `Nothing here can be turned: ${why}.`);
    this.why.hidden = !why;
    const none = this.known.run?.is_recorded ? "A recorded run shows no knobs: the record has each change of them." : "No worker has told of a knob.";
    fill(this.none, none, () => none);
    this.none.hidden = this.known.knobs.length > 0;
    this.knobs.table.hidden = !this.none.hidden;
    this.knobs.update(this.known.knobs, why);
    this.whatIf.update();
  }
}

export const SCREENS = [["Run", RunScreen], ["Fleet", FleetScreen], ["Knobs", KnobScreen], ["Record", RecordScreen], ["Logs", LogScreen], ["Timeline", TimelineScreen], ["Policies", PolicyScreen], ["Landscape", LandscapeScreen]];
