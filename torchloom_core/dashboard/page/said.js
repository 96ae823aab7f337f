// The message line: what is said is of a moment, and is let go of when that is over.

const LASTS_MS = 12000;
const FRESH_MS = 3000; // what was said so short a time ago is of what has just changed

export class Said {
  constructor(place) {
    this.place = place;
    this.saidMs = -Infinity;
    this.holds = "";
  }

  say(text, good = true) {
    this.place.textContent = text;
    this.place.className = good ? "" : "no";
    this.saidMs = performance.now();
  }

  clear() {
    if (this.place.textContent) this.place.textContent = "";
  }

  // Let go of what has been there for long enough, or was said when all was otherwise.
  update(holds) {
    const age = performance.now() - this.saidMs;
    if (age > LASTS_MS || (holds !== this.holds && age > FRESH_MS)) this.clear();
    this.holds = holds;
  }
}
