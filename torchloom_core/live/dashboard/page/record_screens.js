// The screens to read: the record, and the logs of trainers.

import { clock, el, fill, lock, section } from "./dom.js";
import { keyOf, lineItem, logItem, newestFirst, storyItem } from "./record.js";

const MOST_ITEMS = 150;
const LEVELS = ["debug", "info", "warning", "error", "critical"];

function nothing(isFiltered, what) {
  return el("li", { className: "faint" }, isFiltered ? `No ${what} matches the filter.` : `No ${what} yet.`);
}

export class RecordScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.filter = "";
    this.stories = el("ol", { className: "record" });
    this.lines = el("ol", { className: "record" });
    const find = el("input", { type: "search", oninput: (event) => { this.filter = event.target.value.toLowerCase(); this.update(); } });
    this.text = el("input", { maxlength: "2000", required: true });
    this.add = el("button", { type: "submit" }, "Add");
    const annotation = el("form", { className: "row", onsubmit: (event) => { event.preventDefault(); act.send("annotate", { text: this.text.value }); this.text.value = ""; } }, el("label", {}, "New annotation ", this.text), this.add);
    this.parts = [el("section", { className: "wide", "aria-label": "Record" }, el("div", { className: "row" }, el("h2", {}, "Record"), el("label", {}, "Filter ", find), annotation)), section("Decisions", {}, this.stories), section("Other events", {}, this.lines)];
  }

  update() {
    const { store, filter } = this;
    const why = this.act.refusal(); // an annotation takes no control lease
    lock(this.add, why);
    lock(this.text, why);
    const has = (one) => !filter || JSON.stringify(one).toLowerCase().includes(filter);
    const stories = newestFirst([...store.stories.values()].filter(has)).slice(0, MOST_ITEMS);
    fill(this.stories, `${this.act.lock()} ${stories.map(keyOf)} ${Boolean(filter)}`, () => (stories.length ? stories.map((story) => storyItem(story, this.act)) : nothing(filter, "decision")));
    const lines = store.lines.filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.lines, `${Boolean(filter)} ${lines.map((line) => line.version)}`, () => (lines.length ? lines.map(lineItem) : nothing(filter, "event")));
  }
}

// Lines of one worker that repeat are one, with a count.
function folded(lines) {
  const items = new Map();
  for (const line of lines) {
    const key = `${line.worker} ${line.kind} ${line.text}`;
    const known = items.get(key);
    if (known) Object.assign(known, { times: known.times + 1, lastS: line.at_s });
    else items.set(key, { ...line, times: 1, lastS: line.at_s });
  }
  return [...items.values()].sort((one, other) => other.lastS - one.lastS);
}

export class LogScreen {
  constructor(store) {
    this.store = store;
    this.filter = "";
    this.from = "debug";
    this.lines = el("ol", { className: "record" });
    this.sent = el("p", { className: "faint" });
    const find = el("input", { type: "search", placeholder: "worker or text", oninput: (event) => { this.filter = event.target.value.toLowerCase(); this.update(); } });
    const level = el("select", { onchange: (event) => { this.from = event.target.value; this.update(); } }, LEVELS.map((name) => el("option", { value: name }, name)));
    this.parts = [el("section", { className: "wide", "aria-label": "Logs of trainers" }, el("div", { className: "row" }, el("h2", {}, "Logs of trainers"), el("label", {}, "Filter ", find), el("label", {}, "Lowest level ", level)), this.sent, this.lines)];
  }

  update() {
    const { logs, knobs } = this.store;
    const below = LEVELS.slice(0, LEVELS.indexOf(this.from));
    const has = (line) => !below.includes(line.kind) && (!this.filter || `${line.worker} ${line.text}`.toLowerCase().includes(this.filter));
    const lines = folded(logs.filter(has).slice(-MOST_ITEMS));
    const isFiltered = Boolean(this.filter || below.length);
    const level = knobs.find(({ name }) => name === "log_level")?.values[0]?.[0];
    const sent = `Trainers send lines from level ${level ?? "TORCHLOOM_TRAINER_LOG"} on (set the knob log_level to change that). ${logs.length ? `Newest line at ${clock(logs.at(-1).at_s)}.` : ""}`;
    fill(this.sent, sent, () => sent);
    fill(this.lines, `${isFiltered} ${lines.map((line) => `${line.version} ${line.times}`)}`, () => (lines.length ? lines.map(logItem) : nothing(isFiltered, "line")));
  }
}
