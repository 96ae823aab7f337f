// Which try a panel shows, and what became of the newest one where that is another.

import { clock, el, fill, many, span } from "./dom.js";
import { ended } from "./record.js";

const WAITS = "approval"; // what is denied by this rule is so until a person approves it

function triesOf(known, name) {
  return [...known.stories.values()].filter(({ wish }) => wish.split(" ")[0] === name && wish !== `${name} end`);
}

function asked(story, now_s) {
  return `${story.wish}, asked for at ${clock(story.at_s)}, ${span(Math.max(0, now_s - story.at_s))} ago${story.reason ? `: ${story.reason}` : ""}`;
}

function begun(ofStep, step) {
  return `from the weights of step ${ofStep}${step > ofStep ? `, ${many(step - ofStep, "step")} ago` : ""}`;
}

function failed({ granted, rule, outcome }) {
  return (granted === false && rule !== WAITS) || Boolean(outcome && !outcome.startsWith("done"));
}

// name: of the errand; command: of what the panel shows, if it shows anything.
export class Head {
  constructor(known, name) {
    this.known = known;
    this.name = name;
    this.shown = el("p", { className: "faint" });
    this.newest = el("p", { role: "status" });
    this.place = el("div", {}, this.newest, this.shown);
  }

  // ofStep: of the run, from which on it began; -1: nobody said.
  update(command, ofStep = -1) {
    const tries = triesOf(this.known, this.name);
    const now_s = this.known.run?.now_s ?? 0;
    const newest = tries.reduce((one, other) => (one && one.at_s > other.at_s ? one : other), null);
    const shown = command ? tries.find((story) => story.command === command) ?? null : null;
    const text = newest ? this.textOf(newest, newest === shown, Boolean(command)) : "";
    fill(this.newest, text, () => text);
    this.newest.className = newest && failed(newest) ? "bad" : "";
    this.newest.hidden = !text;
    const told = [shown && asked(shown, now_s), ofStep >= 0 && begun(ofStep, this.known.run?.step)].filter(Boolean).join("; ");
    fill(this.shown, told, () => told);
    this.shown.hidden = !told;
  }

  textOf(newest, isShown, isOther) {
    const below = isShown || !isOther ? "" : "; below is the one before";
    if (failed(newest)) return `The newest try came to nothing: ${newest.wish}, at ${clock(newest.at_s)}, ${ended(newest)}${below}.`;
    if (isShown || newest.outcome) return "";
    return `${newest.wish}, asked for at ${clock(newest.at_s)}, ${newest.rule === WAITS ? "waits for approval" : "is under way"}${below}.`;
  }
}

export function isUnderWay(known, verb) {
  return (known.run?.status?.flights ?? []).some((flight) => flight.verb === verb);
}
