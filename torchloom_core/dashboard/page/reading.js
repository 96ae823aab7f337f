// The screens to read: the record, and the logs of trainers.

import { el, fill, lock } from "./dom.js";
import { lineItem, logItem, storyItem } from "./record.js";

const MOST_ITEMS = 150;
const LEVELS = ["debug", "info", "warning", "error", "critical"];

function nothing(isFiltered, what) {
  return el("li", { className: "faint" }, isFiltered ? `No ${what} is as wanted.` : `No ${what} so far.`);
}

export class RecordScreen {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.filter = "";
    this.stories = el("ol", { className: "record" });
    this.lines = el("ol", { className: "record" });
    const find = el("input", { type: "search", "aria-label": "only what has this text", placeholder: "only with this text", oninput: (event) => { this.filter = event.target.value.toLowerCase(); this.update(); } });
    this.text = el("input", { "aria-label": "something for the record", placeholder: "for the record", maxlength: "2000", required: true });
    this.put = el("button", { type: "submit" }, "put on record");
    const annotation = el("form", { className: "row", onsubmit: (event) => { event.preventDefault(); act.ask("annotate", { text: this.text.value }); this.text.value = ""; } }, this.text, this.put);
    const part = (title, ...children) => el("section", { "aria-label": title }, el("h2", {}, title), children);
    this.parts = [el("section", { className: "wide", "aria-label": "The record" }, el("div", { className: "row" }, find, annotation)), part("Decisions", this.stories), part("What else happened", this.lines)];
  }

  wanted() {
    return {};
  }

  update() {
    const { known, filter } = this;
    const why = known.run?.is_recorded ? this.act.lock() : ""; // it takes no control lease
    lock(this.put, why);
    lock(this.text, why);
    const has = (one) => !filter || JSON.stringify(one).toLowerCase().includes(filter);
    const stories = [...known.stories.values()].filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.stories, stories.map((story) => `${story.id} ${story.version}`).concat(Boolean(filter)).join(), () => (stories.length ? stories.map((story) => storyItem(story)) : nothing(filter, "decision")));
    const lines = known.lines.filter(has).slice(-MOST_ITEMS).reverse();
    fill(this.lines, `${Boolean(filter)} ${lines.map((line) => line.version)}`, () => (lines.length ? lines.map(lineItem) : nothing(filter, "line")));
  }
}

export class LogScreen {
  constructor(known) {
    this.known = known;
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
    const isFiltered = Boolean(this.filter || quiet.length);
    fill(this.lines, `${isFiltered} ${lines.map((line) => line.version)}`, () => (lines.length ? lines.map(logItem) : nothing(isFiltered, "line")));
  }
}
