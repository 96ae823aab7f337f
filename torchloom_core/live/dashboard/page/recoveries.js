// Recoveries: where the seconds between a fault and training again went, a bar for each.

import { legend } from "./charts.js";
import { PHASE_COLOURS } from "./colours.js";
import { clock, el, span, swatch } from "./dom.js";

// Each phase of a recovery, in order, and what it is.
const PHASES = {
  detect: "detect the fault",
  decide: "decide",
  failed_starts: "starts that failed",
  relaunch: "wait for a node, start the process",
  import: "import",
  join: "admission",
  build: "build the model",
  compile: "compile",
  restore: "restore a checkpoint",
  data_loader: "first batch",
  quorum: "wait for the quorum",
  state_transfer: "copy a peer's state",
  first_step: "first committed step",
};
const NEWEST_IN_FULL = 1;
const opened = new Map(); // by the time of the fault: what a person has opened or closed stays so

function titleOf(phase) {
  return PHASES[phase] ?? phase;
}

function bar(one, mostS) {
  const parts = Object.entries(one.phases).map(([phase, seconds]) => {
    const part = el("span", { title: `${titleOf(phase)}: ${span(seconds)}` });
    part.style.background = PHASE_COLOURS[phase];
    part.style.width = `${(100 * seconds) / one.total_s}%`;
    return part;
  });
  const made = el("div", { className: "bar", "aria-hidden": "true" }, parts);
  made.style.width = `${Math.max(4, (100 * one.total_s) / mostS)}%`;
  return made;
}

function phaseTable(one) {
  const rows = Object.entries(one.phases).map(([phase, seconds]) => {
    const name = el("th", { scope: "row" }, swatch(PHASE_COLOURS[phase]), titleOf(phase));
    return el("tr", {}, name, el("td", {}, span(seconds)), el("td", {}, `${((100 * seconds) / one.total_s).toFixed(0)} %`));
  });
  const head = ["Phase", "Time", "Share"].map((text) => el("th", { scope: "col" }, text));
  return el("table", {}, el("caption", { className: "unseen" }, `Phases of the recovery of ${one.group}`), el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

function notesOf(one) {
  return [
    one.phase ? `Not over: ${titleOf(one.phase)}.` : "",
    one.failed_starts ? `Failed starts: ${one.failed_starts}.` : "",
    one.by && one.by !== one.group ? `${one.by} trains in its place.` : "",
    one.stood_still_s === null ? "" : `Other groups stood still for ${span(one.stood_still_s)} at most.`,
  ].filter(Boolean).join(" ");
}

function item(one, number, mostS) {
  const notes = notesOf(one);
  return el("li", {},
    el("p", {}, el("b", {}, `${one.group}: ${span(one.total_s)}`), ` since ${clock(one.lost_ns / 1e9)}. ${one.cause}`),
    bar(one, mostS),
    el("p", { className: one.phase ? "warn" : "" }, `Longest: ${titleOf(one.longest)}, ${span(one.phases[one.longest] ?? null)}. ${notes}`),
    el("details", { open: opened.get(one.lost_ns) ?? number < NEWEST_IN_FULL, ontoggle: ({ target }) => opened.set(one.lost_ns, target.open) }, el("summary", {}, "Phases"), phaseTable(one), one.advice ? el("p", { className: "faint" }, `What would shorten it: ${one.advice}.`) : null));
}

export function recoveryParts(recoveries) {
  if (!recoveries.length) return el("p", { className: "faint" }, "No recovery: no worker that trained was lost since this dashboard started.");
  const mostS = Math.max(...recoveries.map((one) => one.total_s));
  const phases = Object.keys(PHASES).filter((phase) => recoveries.some((one) => phase in one.phases));
  return [
    el("p", { className: "faint" }, "From a fault to the first committed step, the newest first."),
    legend(phases.map((phase) => [PHASE_COLOURS[phase], titleOf(phase)])),
    el("ul", { className: "plain recoveries" }, recoveries.map((one, number) => item(one, number, mostS))),
  ];
}
