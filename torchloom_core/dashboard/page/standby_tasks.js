// Which try a panel shows, and what became of the newest one where that is another.

import { clock, el, fill, many, span } from "./dom.js";
import { ended } from "./record.js";

const WAITS = "approval"; // what is denied by this rule is so until a person approves it
const JUST_ASKED_S = 5; // the Weaver may not have said yet that it is under way

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

// name, verb: of the standby task and of its commands; command: of what the panel shows, if anything.
export class Head {
  constructor(known, name, verb) {
    this.known = known;
    this.name = name;
    this.verb = verb;
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
    return `${newest.wish}, asked for at ${clock(newest.at_s)}, ${this.stateOf(newest)}${below}.`;
  }

  stateOf({ rule, at_s }) {
    if (rule === WAITS) return "waits for approval";
    const isNew = this.known.run.now_s - at_s < JUST_ASKED_S;
    return isNew || this.isUnderWay() ? "is under way" : "of which no end was heard";
  }

  isUnderWay() {
    return (this.known.run?.status?.flights ?? []).some((flight) => flight.verb === this.verb);
  }
}
