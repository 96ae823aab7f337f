// Checkpoints: of each tier the newest, its interval, what a save costs and what a failure loses.

import { clock, el, fill, number, section, span, table } from "./dom.js";
import { EventTracks } from "./event_tracks.js";
import { Knobs, present } from "./knobs.js";
import { valueOf } from "./metrics.js";

const TIERS = {
  memory: { knob: "checkpoint_memory_interval_s", place: "memory of the nodes" },
  path: { knob: "checkpoint_interval_s", place: "path of loom.checkpoints" },
  remote: { knob: "checkpoint_remote_interval_s", place: "remote of loom.checkpoints" },
};
const COMMON = "all tiers"; // of failures that they have in common
const SAVED = "checkpoint_saved";
const KINDS = {
  [SAVED]: ["\u25cf", "--good", "saved"],
  checkpoint_failed: ["\u2715", "--danger", "not saved"],
  checkpoint_not_copied: ["\u25b2", "--warn", "no copy on another node"],
};
const COLUMNS = ["Tier", "Newest", "Size", "Cost of a save", "Interval", "Set interval", "Share of time", "A failure now loses"];
const FORM = COLUMNS.indexOf("Set interval") - 1;
const LATE = 2; // intervals
const LATE_S = 10;
const LEAST_S = 30; // of the time that the marks span
const MOST_SHOWN = 20;
const NONE = "This run has reported no checkpoints of loom.checkpoints. Add checkpoints = loom.checkpoints(model, optimizer, path=...) to the training script.";

function titleOf({ tier }) {
  return tier || COMMON;
}

function stepOf(step) {
  return step >= 0 ? `step ${step}` : "an unknown step";
}

// Saves take milliseconds to hours.
function brief(seconds) {
  return seconds < 1 ? `${number(Number(seconds.toPrecision(2)))} s` : span(seconds);
}

function ofSave(event) {
  const facts = [
    event.bytes === null ? "" : valueOf("_bytes", event.bytes),
    event.kind !== SAVED || event.seconds === null ? "" : `stored in ${brief(event.seconds)}`,
    event.felt_s === null ? "" : `cost ${brief(event.felt_s)}`,
    event.reports > 1 ? `${event.reports} reports` : "",
  ].filter(Boolean).join(", ");
  return `${titleOf(event)}, ${stepOf(event.step)}: ${KINDS[event.kind][2]}${event.why ? `: ${event.why}` : ""}${facts ? ` (${facts})` : ""}`;
}

// Of saves with times: how far they are apart, the median; null of fewer than three.
function measuredInterval(saves, tier) {
  const times = saves.filter((one) => one.tier === tier && one.kind === SAVED).map((one) => one.at_s);
  if (times.length < 3) return null;
  const between = times.slice(1).map((at, i) => at - times[i]).sort((one, other) => one - other);
  return between[Math.floor(between.length / 2)];
}

// A failed save or a missing copy, until a later save has made it good.
function problemsOf(row, newestS) {
  const { failed, not_copied: notCopied, saved } = row.newest;
  const found = [];
  const lastS = row.tier ? saved?.at_s ?? -Infinity : newestS;
  if (failed && failed.at_s >= lastS) found.push(["bad", failed]);
  if (notCopied && (notCopied.step === saved?.step || notCopied.at_s >= lastS)) found.push(["warn", notCopied]);
  return found.map(([tone, event]) => [tone, `${clock(event.at_s)} ${ofSave(event)}`]);
}

export class CheckpointPanel {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.knobs = new Knobs(act, null);
    this.body = el("tbody");
    this.rows = new Map();
    this.problems = el("div");
    this.none = el("p", { className: "faint" }, NONE);
    this.lanes = "";
    this.marks = el("div");
    this.opened = [];
    this.detail = el("ol", { className: "record", "aria-live": "polite" });
    this.gpus = el("p", { className: "faint" });
    this.whole = el("div", {}, this.gpus, table(COLUMNS, this.body), this.problems, el("h3", {}, "Saves"), this.marks, this.detail);
    this.part = section("Checkpoints", { className: "wide" }, this.none, this.whole);
  }

  update() {
    const { tiers } = this.store;
    this.none.hidden = tiers.length > 0;
    this.whole.hidden = !this.none.hidden;
    if (!tiers.length) return;
    const saves = [...this.store.saves.values()].sort((one, other) => one.at_s - other.at_s);
    const named = tiers.filter(({ tier }) => tier in TIERS);
    fill(this.body, named.map(({ tier }) => tier).join(), () => named.map((row) => this.rowOf(row).row));
    const newestS = Math.max(...named.map((row) => row.newest.saved?.at_s ?? -Infinity));
    const problems = tiers.flatMap((row) => problemsOf(row, newestS));
    for (const row of named) problems.push(...this.updateRow(row, saves));
    fill(this.problems, JSON.stringify(problems), () => problems.map(([tone, text]) => el("p", { className: tone }, text)));
    const gpus = this.gpusOf(named);
    const text = `A failure loses the training since the newest checkpoint that it spares: in this tier, or in one below it${gpus ? `, on ${gpus} GPUs` : ""}.`;
    fill(this.gpus, text, () => text);
    this.drawMarks(tiers, saves);
  }

  gpusOf(named) {
    const row = named.find((one) => one.unsaved_s > 0);
    return row ? number(Math.round(row.lost_gpu_s / row.unsaved_s)) : "";
  }

  rowOf({ tier }) {
    if (!this.rows.has(tier)) {
      const cells = COLUMNS.slice(1).map((name) => el("td", { "data-name": name }));
      const head = el("th", { scope: "row" }, tier, el("div", { className: "doc" }, TIERS[tier].place), el("div", { className: "doc" }));
      this.rows.set(tier, { head, cells, row: el("tr", {}, head, cells) });
    }
    return this.rows.get(tier);
  }

  // Returns what is wrong with the tier.
  updateRow(row, saves) {
    const { head, cells } = this.rowOf(row);
    const { run, knobs } = this.store;
    const { saved } = row.newest;
    const { saved: good, failed, not_copied: notCopied } = row.counts;
    const spec = knobs.find(({ name }) => name === TIERS[row.tier].knob);
    const own = spec?.values.length === 1 && !spec.others ? spec.values[0][0] : null;
    const measured = measuredInterval(saves, row.tier);
    const interval = own ?? (spec ? null : measured);
    const cost = row.felt_s ?? saved?.felt_s ?? null;
    const texts = [
      saved ? `${stepOf(saved.step)}, ${span(Math.max(0, run.now_s - saved.at_s))} ago${saved.seconds === null ? "" : `, stored in ${brief(saved.seconds)}`}` : "none since this dashboard started",
      saved && saved.bytes !== null ? valueOf("_bytes", saved.bytes) : "–",
      cost === null ? "not known yet" : brief(cost),
      own !== null ? span(own) : spec ? present(spec) : measured === null ? "–" : `${span(measured)}, measured`,
      null,
      cost === null || !interval ? "–" : `${number(Number(((100 * cost) / interval).toPrecision(2)))} %`,
      row.unsaved_s === null ? "–" : `${span(row.unsaved_s)}, ${number(Math.round(row.lost_gpu_s))} GPU-s`,
    ];
    texts.forEach((text, i) => { if (text !== null) fill(cells[i], text, () => text); });
    const counts = `${good} saved${failed ? `, ${failed} not saved` : ""}${notCopied ? `, ${notCopied} without a copy` : ""}`;
    fill(head.lastChild, counts, () => counts);
    if (spec) this.updateForm(spec, cells);
    const isLate = own !== null && run.counts.training > 0 && row.unsaved_s > LATE * own + LATE_S;
    return isLate ? [["warn", `${row.tier}: no checkpoint for ${span(row.unsaved_s)}, the interval is ${span(own)}.`]] : [];
  }

  updateForm(spec, cells) {
    const { form } = this.knobs.rowOf(spec);
    if (cells[FORM] !== form) {
      cells[FORM].replaceWith(form);
      cells[FORM] = form;
    }
    this.knobs.updateForm(spec, this.act.lock());
  }

  drawMarks(tiers, saves) {
    const lanes = tiers.map(titleOf);
    if (lanes.join() !== this.lanes) {
      this.lanes = lanes.join();
      this.tracks = new EventTracks((members) => this.open(members), lanes);
      this.symbols = el("p", { className: "faint" });
      this.marks.replaceChildren(this.tracks.place, this.symbols);
    }
    const until = this.store.run.now_s;
    const from = Math.min(saves[0]?.at_s ?? until, until - LEAST_S);
    const events = saves.map((one) => ({ at: one.at_s, lane: titleOf(one), glyph: KINDS[one.kind][0], colour: KINDS[one.kind][1], text: ofSave(one), save: one }));
    this.tracks.draw(events, [from, until]);
    const there = Object.entries(KINDS).filter(([kind]) => saves.some((one) => one.kind === kind));
    const key = `${clock(from)} to now: ${there.map(([, [glyph, , text]]) => `${glyph} ${text}`).join(", ") || "no save reported"}`;
    fill(this.symbols, key, () => key);
    const opened = this.opened.map(({ id }) => this.store.saves.get(id)).filter(Boolean).slice(-MOST_SHOWN);
    fill(this.detail, JSON.stringify(opened), () => opened.map((one) => el("li", {}, el("span", { className: "faint" }, `${clock(one.at_s)} `), ofSave(one))));
  }

  open(members) {
    this.opened = members.map(({ save }) => save);
    this.update();
  }
}
