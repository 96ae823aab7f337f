// The message line: an answer stays for a while, and goes when the state has changed.

const LASTS_MS = 12000;
const FRESH_MS = 3000; // a message this new is about the change itself

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
