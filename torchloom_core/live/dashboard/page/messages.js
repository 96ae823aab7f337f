// The message line, and the requests of this page whose outcomes it reports.

import { endOf } from "./record.js";

const LASTS_MS = 12000;
const FRESH_MS = 3000; // a message this new is about the change itself

// An answer stays for a while, and goes when the state has changed.
export class MessageLine {
  constructor(place) {
    this.place = place;
    this.shownMs = -Infinity;
    this.state = "";
  }

  show(text, good = true) {
    this.place.textContent = text;
    this.place.className = good ? "" : "no";
    this.shownMs = performance.now();
  }

  clear() {
    if (this.place.textContent) this.place.textContent = "";
  }

  // Clear a message that is old, or that belongs to another state.
  update(state) {
    const age = performance.now() - this.shownMs;
    if (age > LASTS_MS || (state !== this.state && age > FRESH_MS)) this.clear();
    this.state = state;
  }
}

const MOST = 20;

// Follows requests through the record.
export class RequestOutcomes {
  constructor(store, show) {
    this.store = store;
    this.show = show;
    this.requests = [];
  }

  // ids: of the commands that an answer names, or of the proposal that waits or was approved.
  follow(ids) {
    if (!ids.length) return;
    this.requests.push({ ids, outcome: "" });
    if (this.requests.length > MOST) this.requests.shift();
  }

  update() {
    this.requests = this.requests.filter((one) => !this.isOver(one));
  }

  isOver(one) {
    const { ids } = one;
    const story = [...this.store.stories.values()].find(({ id, command }) => ids.includes(id) || ids.includes(command));
    if (!story) return false;
    if (story.outcome && story.outcome !== one.outcome) {
      one.outcome = story.outcome;
      this.show(`${story.summary} ${endOf(story)}`, story.outcome.startsWith("done"));
    }
    if (story.judged) this.show(`${story.summary}: ${story.judged}`, !story.judged.startsWith("did harm"));
    const verdict = this.verdictOf(story);
    if (verdict) this.show(`${story.summary}: ${verdict}`);
    return Boolean(story.judged || verdict);
  }

  // The result of a preview that is over, where this page shows it.
  verdictOf({ command }) {
    const { preview } = this.store;
    if (!command || preview?.command !== command || !preview.is_over) return "";
    return preview.words.find(([name]) => name === "verdict")?.[1] ?? "";
  }
}
