// The socket to the dashboard, which is opened again for as long as the page is.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const TRY_AGAIN = 1013;
const MARK_EVERY_MS = 1000;
const MOST_WAITING_BYTES = 4096;
const SHUT_OUT = [401, 403, 421];
const SHUT_OUT_WAIT_MS = 60_000;

export const NOT_LET_IN = "this browser is not let in any more: open the link that the dashboard has printed";

export class Link {
  constructor(onText, onFrame, onChange) {
    this.onText = onText;
    this.onFrame = onFrame;
    this.onChange = onChange;
    this.isOpen = false;
    this.isShutOut = false;
    this.mark = 0;
    this.sentMs = new Map(); // when each mark was sent that was not told back yet
    setInterval(() => this.send(), MARK_EVERY_MS);
    this.wanted = {};
    this.refusal = ""; // why the dashboard took no more pages, when this one came
    this.waitMs = FIRST_WAIT_MS;
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/live`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.isOpen = true;
      this.sentMs.clear();
      this.onChange(true);
      this.send();
    };
    socket.onmessage = ({ data }) => {
      this.waitMs = FIRST_WAIT_MS;
      if (typeof data === "string") this.take(JSON.parse(data));
      else this.onFrame(data);
    };
    socket.onclose = ({ code, reason }) => {
      this.refusal = code === TRY_AGAIN ? reason : "";
      if (this.isOpen) this.onChange(false);
      this.isOpen = false;
      this.comeAgain();
    };
    this.socket = socket;
  }

  // Whether it may come in a socket does not say; a page can be asked for.
  async comeAgain() {
    const answer = await fetch("/page/dashboard.css", { method: "HEAD" }).catch(() => null);
    this.isShutOut = SHUT_OUT.includes(answer?.status);
    setTimeout(() => this.open(), this.isShutOut ? SHUT_OUT_WAIT_MS : this.waitMs);
    this.waitMs = Math.min(LONGEST_WAIT_MS, 2 * this.waitMs);
  }

  // What is told was made after the dashboard had heard this page's mark: however long it was on its
  // way, it is no older than that.
  take(told) {
    if (told.run) {
      told.run.sinceMs = this.sentMs.get(told.run.mark) ?? performance.now();
      for (const mark of this.sentMs.keys()) if (mark < told.run.mark) this.sentMs.delete(mark);
    }
    this.onText(told);
  }

  // Say what the page looks at, again whenever the socket is a new one.
  look(wanted) {
    const text = JSON.stringify(wanted);
    if (text === JSON.stringify(this.wanted)) return;
    this.wanted = wanted;
    this.send();
  }

  send() {
    if (!this.isOpen || this.socket.bufferedAmount > MOST_WAITING_BYTES) return;
    this.mark += 1;
    this.sentMs.set(this.mark, performance.now());
    this.socket.send(JSON.stringify({ ...this.wanted, mark: this.mark }));
  }
}

export async function ask(verb, name, body = {}) {
  try {
    const answer = await fetch(`/ask/${verb}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ name, body }),
    });
    if (answer.status === 401) return { ok: false, text: NOT_LET_IN };
    return await answer.json();
  } catch {
    return { ok: false, text: "the dashboard does not answer" };
  }
}

export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
