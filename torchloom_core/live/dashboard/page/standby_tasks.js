// Which preview or landscape a panel shows, and the state of the newest one where that is another.

import { clock, el, fill, many, span } from "./dom.js";
import { endOf, WAITS } from "./record.js";

const NEW_S = 5; // until then the Weaver may not have reported that it is under way

function requestsOf(store, name) {
  return [...store.stories.values()].filter(({ summary }) => summary.split(" ")[0] === name && summary !== `${name} end`);
}

function requested(story, now_s) {
  return `${story.summary}, requested at ${clock(story.at_s)}, ${span(Math.max(0, now_s - story.at_s))} ago${story.reason ? `: ${story.reason}` : ""}`;
}

function begun(ofStep, step) {
  return `from the weights of step ${ofStep}${step > ofStep ? `, ${many(step - ofStep, "step")} ago` : ""}`;
}

function failed({ granted, rule, outcome }) {
  return (granted === false && rule !== WAITS) || Boolean(outcome && !outcome.startsWith("done"));
}

// name, verb: of the standby task and of its commands; command: of the one that the panel shows.
export class TaskHead {
  constructor(store, name, verb) {
    this.store = store;
    this.name = name;
    this.verb = verb;
    this.shown = el("p", { className: "faint" });
    this.newest = el("p", { role: "status" });
    this.place = el("div", {}, this.newest, this.shown);
  }

  // ofStep: the run's step whose weights it started from; -1 if unknown.
  update(command, ofStep = -1) {
    const requests = requestsOf(this.store, this.name);
    const now_s = this.store.run?.now_s ?? 0;
    const newest = requests.reduce((one, other) => (one && one.at_s > other.at_s ? one : other), null);
    const shown = command ? requests.find((story) => story.command === command) ?? null : null;
    const text = newest ? this.textOf(newest, newest === shown, Boolean(command)) : "";
    fill(this.newest, text, () => text);
    this.newest.className = newest && failed(newest) ? "bad" : "";
    this.newest.hidden = !text;
    const head = [shown && requested(shown, now_s), ofStep >= 0 && begun(ofStep, this.store.run?.step)].filter(Boolean).join("; ");
    fill(this.shown, head, () => head);
    this.shown.hidden = !head;
  }

  textOf(newest, isShown, isOther) {
    const below = isShown || !isOther ? "" : "; an earlier one is shown below";
    if (failed(newest)) return `The newest one failed: ${newest.summary}, at ${clock(newest.at_s)}, ${endOf(newest)}${below}.`;
    if (isShown || newest.outcome) return "";
    return `${newest.summary}, requested at ${clock(newest.at_s)}, ${this.stateOf(newest)}${below}.`;
  }

  stateOf({ rule, at_s }) {
    if (rule === WAITS) return "waits for approval";
    const isNew = this.store.run.now_s - at_s < NEW_S;
    return isNew || this.isUnderWay() ? "is under way" : "has not reported an end";
  }

  isUnderWay() {
    return (this.store.run?.status?.flights ?? []).some((flight) => flight.verb === this.verb);
  }
}
