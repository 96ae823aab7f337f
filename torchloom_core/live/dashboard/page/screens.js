// The screens: each builds its sections once, and then updates them.

import { eventsOf, markLegend, marksOf } from "./annotations.js";
import { Chart, legend } from "./charts.js";
import { CheckpointPanel } from "./checkpoints.js";
import { button, clock, el, fill, lock, section, span } from "./dom.js";
import { FleetScreen } from "./fleet.js";
import { Knobs, shown } from "./knobs.js";
import { LandscapeScreen } from "./landscape.js";
import { freshId } from "./link.js";
import { titleOf, USUAL_METRICS } from "./metrics.js";
import { PolicyScreen } from "./policies.js";
import { WhatIf } from "./preview.js";
import { ProgramPanel } from "./programs.js";
import { approvalPart, isPending, keyOf, newestFirst, priceOf, shortItem, WAITS } from "./record.js";
import { LogScreen, RecordScreen } from "./record_screens.js";
import { recoveryParts } from "./recoveries.js";
import { accountKey, accountParts } from "./time_account.js";
import { TimelineScreen } from "./timeline.js";

const MOST_CHARTS = 6;
const MOST_MARKS = 100;
const NEWEST = 4;
const TONES = { healthy: "good", finished: "faint", paused: "warn", unknown: "faint", starting: "warn", degraded: "warn", unhealthy: "bad" };
const ANSWERS = { unknown: "Unknown: the data is old", healthy: "Healthy", finished: "Finished: all ranks have ended", paused: "Paused", starting: "Starting: no rank trains yet", degraded: "Degraded: it trains, with problems", unhealthy: "Unhealthy" };

// What can be done to all ranks, with the consequence, and the question asked first.
const FOR_ALL = [
  ["Pause", "pause", "all ranks wait at one step; under torchft 48 s at most", "Pause the training of all ranks?", "danger"],
  ["Resume training", "resume", "after a pause", "", ""],
  ["Checkpoint now", "checkpoint", "changes nothing in training", "", ""],
  ["Rewind to the last checkpoint", "rewind", "the steps since then are lost", "Rewind all ranks to the last checkpoint? The steps since then are lost and cannot be brought back.", "danger"],
];

const MIGRATE = ["failure_forecast", "straggler", "lemon_nodes"]; // policies that need a standby

// Whether a failure or a slow rank would need a standby, and none is left.
export function lacksStandby({ counts, time_account: account, is_recorded: isRecorded, status }) {
  if (isRecorded || counts.standby || !counts.training) return false;
  return account?.standby > 0 || (status?.plugins ?? []).some((one) => one.state === "act" && MIGRATE.includes(one.name));
}

export class RunScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.charts = new Map();
    this.health = el("div");
    this.approvals = el("div");
    this.ages = [];
    this.stories = el("ol", { className: "record" });
    this.risk = el("div");
    this.account = el("div");
    this.recoveries = el("div");
    this.checkpoints = new CheckpointPanel(store, act);
    this.programs = new ProgramPanel(store);
    this.chosen = "";
    this.zoomed = null;
    this.pick = el("select", { onchange: (event) => { this.chosen = event.target.value; act.select(); this.update(); } });
    this.reset = button("Reset zoom", "", () => this.zoom(null));
    this.legend = el("div");
    this.plots = el("div", { className: "charts" });
    const charts = el("section", { className: "wide", "aria-label": "Metrics" }, el("div", { className: "row" }, el("h2", {}, "Metrics"), el("label", {}, "Also show ", this.pick), this.reset, el("span", { className: "faint" }, "median across ranks, shaded min to max; drag in a chart to zoom")), this.plots, this.legend);
    this.parts = [section("Run health", {}, this.health), section("Pending approvals", {}, this.approvals), section("Newest decisions", {}, this.stories), this.programs.part, charts, this.checkpoints.part, section("Goodput", {}, this.account), section("Recoveries", {}, this.recoveries), section("Failure forecasts", {}, this.risk)];
  }

  wanted() {
    const usual = this.usual();
    return { series: this.chosen ? [...usual, this.chosen] : usual };
  }

  usual() {
    const there = this.store.run?.metrics ?? [];
    const usual = USUAL_METRICS.filter((name) => there.includes(name));
    return usual.length ? usual : there.slice(0, MOST_CHARTS);
  }

  zoom(span) {
    this.zoomed = span;
    this.update();
  }

  range() {
    if (this.zoomed) return this.zoomed;
    const series = this.wanted().series.map((name) => this.store.series.get(name)).filter((points) => points?.length);
    const last = Math.max(...series.map((points) => points.at(-1)[0]));
    return [Math.min(...series.map((points) => points[0][0]), last - 2), last];
  }

  update() {
    const { run } = this.store;
    if (!run) return;
    const status = run.status ?? {};
    fill(this.account, accountKey(run.time_account, run.waiting), () => accountParts(run.time_account, run.waiting));
    fill(this.health, JSON.stringify([this.isOld(run), run.health, run.counts, run.time_account.standby > 0, status.stopped, status.dry_run, status.cordoned, status.lighthouse, status.malformed, status.flights_in_all, status.plugins?.map((one) => one.state)]), () => this.healthParts(run, status));
    const why = this.act.lock();
    fill(this.approvals, JSON.stringify([status.waiting, status.knobs_waiting, why]), () => [this.knobsWaiting(status.knobs_waiting ?? [], why), this.proposals(status.waiting ?? [])].flat());
    for (const { age, proposal } of this.ages) age.textContent = this.ageOf(this.store.stories.get(proposal));
    fill(this.risk, JSON.stringify([status.at_risk, status.plugins]), () => this.riskParts(status));
    const stories = newestFirst([...this.store.stories.values()].filter((story) => story.rule !== WAITS || isPending(story))).slice(0, NEWEST);
    fill(this.stories, `${why} ${stories.map(keyOf)}`, () => (stories.length ? stories.map((story) => shortItem(story, this.act)) : el("li", { className: "faint" }, "No decisions yet: no policy has proposed an action, and no person has requested one.")));
    fill(this.recoveries, JSON.stringify(this.store.recoveries), () => recoveryParts(this.store.recoveries));
    this.programs.update();
    this.checkpoints.update();
    this.drawCharts(run);
  }

  isOld(run) {
    return this.act.isStale() && !run.is_recorded;
  }

  healthParts(run, status) {
    if (this.isOld(run)) return [el("p", { className: `big ${TONES.unknown}` }, ANSWERS.unknown), el("p", { className: "faint" }, `Last known: ${ANSWERS[run.health.level]}.`)];
    const { level, reasons } = run.health;
    const policies = (status.plugins ?? []).filter((one) => one.kind === "policy");
    const acting = policies.filter((one) => one.state === "act").length;
    const notes = [];
    if (status.stopped) notes.push(["bad", "All actions are stopped: none is granted until they are resumed. Training continues."]);
    if (status.dry_run) notes.push(["warn", "Dry run: actions are decided and recorded, not carried out."]);
    notes.push(["faint", policies.length ? `Automation: ${acting} of ${policies.length} policies act, the others only record (see Policies).` : "Automation: no policy is configured; people control this run."]);
    if (lacksStandby(run)) notes.push(["warn", "No standby: no migration is possible."]);
    if (status.flights_in_all) notes.push(["faint", `${status.flights_in_all} commands are under way.`]);
    if (status.cordoned?.length) notes.push(["warn", `Cordoned nodes: ${status.cordoned.join(", ")}`]);
    const quorum = /^quorum (\d+) of (\d+)(.*)$/.exec(status.lighthouse ?? "");
    if (quorum) notes.push(["faint", `Quorum of ${quorum[2]} replica groups${quorum[3].replace("held:", "waiting as standby:")}`]);
    if (status.malformed) notes.push(["warn", `${status.malformed} messages could not be read.`]);
    return [
      el("p", { className: `big ${TONES[level]}` }, ANSWERS[level]),
      el("ul", { className: "plain" }, reasons.map(([one, text]) => el("li", { className: one === "healthy" ? "" : TONES[one] }, text))),
      ...notes.map(([tone, text]) => el("p", { className: tone }, text)),
    ];
  }

  riskParts({ at_risk: risks = [], plugins = [] }) {
    const predictors = plugins.filter((one) => one.kind === "predictor");
    if (!predictors.length) return el("p", { className: "faint" }, "No predictor is configured, so no failures are forecast.");
    const worst = [...risks].sort((one, other) => other.hazard - one.hazard).slice(0, 8);
    const without = predictors.filter((one) => one.detail).map((one) => el("p", { className: "warn" }, `${one.name}: ${one.detail}`)); // those that forecast nothing, and why
    if (!worst.length) return without.length < predictors.length ? [el("p", { className: "good" }, "No worker at risk."), ...without] : without;
    return [el("table", {}, el("tbody", {}, worst.map((one) => el("tr", {}, el("th", { scope: "row" }, one.worker), el("td", {}, `${(100 * one.hazard).toFixed(0)} % within ${span(one.horizon_s)}`), el("td", { className: "faint" }, `${one.predictor}${one.why ? `: ${one.why}` : ""}`))))), ...without];
  }

  drawCharts(run) {
    const more = run.metrics.filter((name) => !this.usual().includes(name));
    fill(this.pick, more.join(), () => ["", ...more].map((name) => el("option", { value: name, selected: name === this.chosen }, name ? titleOf(name) : "no other metric")));
    this.reset.hidden = !this.zoomed;
    const wanted = this.wanted().series;
    const [from, until] = this.range();
    const marks = marksOf(eventsOf(this.store)).slice(-MOST_MARKS);
    const entries = markLegend(marks.filter(({ at }) => at >= from && at <= until));
    fill(this.legend, entries.join(), () => (entries.length ? legend(entries) : []));
    for (const [name, chart] of this.charts) chart.place.hidden = !wanted.includes(name);
    for (const name of wanted) {
      if (!this.charts.has(name)) {
        const chart = new Chart(name, { span: () => this.range(), onSpan: (one) => this.zoom(one), group: "run" });
        this.charts.set(name, chart);
        this.plots.append(chart.place);
      }
      this.charts.get(name).draw(this.store.series.get(name), marks);
    }
  }

  knobsWaiting(waiting, why) {
    return waiting.map(({ knob, value, worker, since_ns }) => {
      const body = worker ? { knob, worker } : { knob };
      const text = `${knob} = ${shown(value)}${worker ? ` of ${worker}` : ""}, set in an earlier job at ${clock(since_ns / 1e9)}: this job trains with its own value`;
      return el("div", {}, el("p", { className: "warn" }, text), el("div", { className: "row" },
        button(`Take ${knob}`, why, () => this.act.send("knob.set", { ...body, value, sure: true, id: freshId() })),
        button(`Drop ${knob}`, why, () => this.act.send("knob.unset", { ...body, id: freshId() }))));
    });
  }

  proposals(waiting) {
    this.ages = [];
    if (!waiting.length) return el("p", { className: "faint" }, "No pending approvals. Proposals without an approval expire.");
    return waiting.map((one) => {
      const age = el("p", { className: "faint" });
      this.ages.push({ age, proposal: one.proposal });
      return el("div", {}, el("p", {}, "Policy ", el("b", {}, one.policy), " proposes ", el("b", {}, one.summary), `: ${one.reason}`), el("p", { className: "faint" }, `${priceOf(one)}; expires at ${clock(one.until_ns / 1e9)}, or once its reason no longer holds`), age, approvalPart(one.proposal, this.act));
    });
  }

  // The proposal describes the moment it was made.
  ageOf(story) {
    return story ? `proposed at ${clock(story.at_s)}, ${span(Math.max(0, this.store.run.now_s - story.at_s))} ago, with the numbers of that moment` : "";
  }
}

export class KnobScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.whatIf = new WhatIf(store, act);
    this.knobs = new Knobs(act, (knob, value) => this.whatIf.try(knob, value));
    this.none = el("p", { className: "faint" });
    this.run = el("div", { className: "row" }, FOR_ALL.map(([text, kind, consequence, question, tone]) => {
      const made = button(text, "", () => act.propose({ kind }, question), { className: tone });
      made.append(el("small", {}, consequence));
      return made;
    }));
    this.parts = [section("The whole run", { className: "wide" }, this.run), section("Knobs", { className: "wide" }, this.none, this.knobs.table), this.whatIf.part];
  }

  wanted() {
    return this.whatIf.wanted();
  }

  update() {
    const why = this.act.lock();
    for (const one of this.run.children) lock(one, why);
    const none = this.store.run?.is_recorded ? "A recorded run shows no knobs: the record has each change of them." : "No worker has reported a knob yet. Add one with loom.knob(...) in the training script.";
    fill(this.none, none, () => none);
    this.none.hidden = this.store.knobs.length > 0;
    this.knobs.table.hidden = !this.none.hidden;
    this.knobs.update(this.store.knobs, why);
    this.whatIf.update();
  }
}

export const SCREENS = [["Run", RunScreen], ["Fleet", FleetScreen], ["Knobs", KnobScreen], ["Record", RecordScreen], ["Logs", LogScreen], ["Timeline", TimelineScreen], ["Policies", PolicyScreen], ["Landscape", LandscapeScreen]];
export const FLEET = 1;
