// The socket to the dashboard; it reconnects for as long as the page is open.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
const TRY_AGAIN = 1013;
const MARK_EVERY_MS = 1000;
const MOST_WAITING_BYTES = 4096;
const NO_ACCESS_STATUS = [401, 403, 421];
const NO_ACCESS_WAIT_MS = 60_000;

export const NO_ACCESS = "this browser has no access any more: open the link that the dashboard has printed";

export class Link {
  constructor(onText, onFrame, onChange) {
    this.onText = onText;
    this.onFrame = onFrame;
    this.onChange = onChange;
    this.isOpen = false;
    this.hasNoAccess = false;
    this.mark = 0;
    this.sentMs = new Map(); // when each mark was sent that has not come back yet
    setInterval(() => this.send(), MARK_EVERY_MS);
    this.selection = {};
    this.refusal = ""; // why the dashboard refused another page
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
      this.reconnect();
    };
    this.socket = socket;
  }

  // A socket does not report why it was refused; an HTTP request does.
  async reconnect() {
    const answer = await fetch("/page/dashboard.css", { method: "HEAD" }).catch(() => null);
    this.hasNoAccess = NO_ACCESS_STATUS.includes(answer?.status);
    setTimeout(() => this.open(), this.hasNoAccess ? NO_ACCESS_WAIT_MS : this.waitMs);
    this.waitMs = Math.min(LONGEST_WAIT_MS, 2 * this.waitMs);
  }

  // An update was made after the dashboard received this page's mark, so it is no older than that.
  take(update) {
    if (update.run) {
      update.run.sinceMs = this.sentMs.get(update.run.mark) ?? performance.now();
      for (const mark of this.sentMs.keys()) if (mark < update.run.mark) this.sentMs.delete(mark);
    }
    this.onText(update);
  }

  // Send what the page shows; a new socket sends it again.
  select(wanted) {
    const text = JSON.stringify(wanted);
    if (text === JSON.stringify(this.selection)) return;
    this.selection = wanted;
    this.send();
  }

  send() {
    if (!this.isOpen || this.socket.bufferedAmount > MOST_WAITING_BYTES) return;
    this.mark += 1;
    this.sentMs.set(this.mark, performance.now());
    this.socket.send(JSON.stringify({ ...this.selection, mark: this.mark }));
  }
}

export async function request(verb, name, body = {}) {
  try {
    const answer = await fetch(`/ask/${verb}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ name, body }),
    });
    if (answer.status === 401) return { ok: false, text: NO_ACCESS };
    return await answer.json();
  } catch {
    return { ok: false, text: "the dashboard does not answer" };
  }
}

export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
