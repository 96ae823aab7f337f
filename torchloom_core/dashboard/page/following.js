// How that ended which this page has asked for: it is followed from the answer through the record.

import { ended } from "./record.js";

const MOST = 20;

export class Following {
  constructor(known, say) {
    this.known = known;
    this.say = say;
    this.asked = [];
  }

  // ids: of the commands that an answer names, or of the proposal that waits, or was approved.
  follow(ids) {
    if (!ids.length) return;
    this.asked.push({ ids, outcome: "" });
    if (this.asked.length > MOST) this.asked.shift();
  }

  update() {
    this.asked = this.asked.filter((one) => !this.isOver(one));
  }

  isOver(one) {
    const { ids } = one;
    const story = [...this.known.stories.values()].find(({ id, command }) => ids.includes(id) || ids.includes(command));
    if (!story) return false;
    if (story.outcome && story.outcome !== one.outcome) {
      one.outcome = story.outcome;
      this.say(`${story.wish} ${ended(story)}`, story.outcome.startsWith("done"));
    }
    if (story.judged) this.say(`${story.wish}: ${story.judged}`, !story.judged.startsWith("hurt"));
    const verdict = this.verdictOf(story);
    if (verdict) this.say(`${story.wish}: ${verdict}`);
    return Boolean(story.judged || verdict);
  }

  // What the preview says that it has led to, once it is over, where this page looks at it.
  verdictOf({ command }) {
    const { preview } = this.known;
    if (!command || preview?.command !== command || !preview.is_over) return "";
    return preview.words.find(([name]) => name === "verdict")?.[1] ?? "";
  }
}
