// What the page knows of the run, put together from what the dashboard sends.

const WHOLE = 1;
const HEADER_BYTES = 24;
const MOST_STORIES = 1000; // as many as the dashboard keeps
const MOST_LINES = 2500;
const MOST_POINTS = 3600;

export class Known {
  constructor() {
    this.run = null;
    this.runMs = -Infinity;
    this.series = new Map();
    this.knobs = [];
    this.backtest = {};
    this.tallies = {};
    this.worker = null;
    this.forget();
  }

  // Another socket: the dashboard tells all of it again.
  forget() {
    this.landscape = null;
    this.preview = null;
    this.stories = new Map();
    this.places = [];
    this.placesVersion = 0;
    this.lines = [];
    this.logs = [];
    this.channels = [new Uint8Array(0), new Uint8Array(0)];
    this.scale = { low: 0, high: 1 };
    this.farthest = new Map(); // of the painted metric, from the most down: values as they are
    this.frames = 0;
  }

  take(told) {
    if (told.run) {
      this.run = told.run;
      this.runMs = told.run.sinceMs;
    }
    if (told.places) {
      const { first, columns } = told.places;
      this.places.length = first;
      columns[0].forEach((_, row) => this.places.push(columns.map((column) => column[row])));
      this.placesVersion += 1;
    }
    if (told.farthest) this.farthest = new Map(told.farthest);
    if (told.knobs) this.knobs = told.knobs;
    if (told.backtest) this.backtest = told.backtest;
    if (told.tallies) this.tallies = told.tallies;
    if (told.worker) this.worker = told.worker;
    if (told.preview) this.preview = told.preview;
    if (told.landscape) this.takeLandscape(told.landscape);
    for (const id of told.taken_in ?? []) this.stories.delete(id);
    for (const story of told.stories ?? []) {
      this.stories.delete(story.id);
      this.stories.set(story.id, story);
    }
    while (this.stories.size > MOST_STORIES) this.stories.delete(this.stories.keys().next().value);
    for (const [kept, some] of [[this.lines, told.lines], [this.logs, told.logs]]) {
      kept.push(...(some ?? []));
      if (kept.length > MOST_LINES) kept.splice(0, kept.length - MOST_LINES);
    }
    for (const [metric, points] of Object.entries(told.series ?? {})) this.addPoints(metric, points);
  }

  // Points come once: those of before are kept, unless it is another look.
  takeLandscape(told) {
    const before = told.new ? null : this.landscape;
    this.landscape = { ...told, line: [...(before?.line ?? []), ...told.line], cells: [...(before?.cells ?? []), ...told.cells] };
  }

  addPoints(metric, points) {
    const known = this.series.get(metric) ?? [];
    while (known.length && known[known.length - 1][0] >= points[0][0]) known.pop();
    known.push(...points);
    if (known.length > MOST_POINTS) known.splice(0, known.length - MOST_POINTS);
    this.series.set(metric, known);
  }

  takeFrame(buffer) {
    const view = new DataView(buffer);
    const kind = view.getUint8(0);
    const channel = view.getUint8(1);
    const count = view.getUint32(4, true);
    if (channel === 1) this.scale = { low: view.getFloat64(8, true), high: view.getFloat64(16, true) };
    const rest = new Uint8Array(buffer, HEADER_BYTES);
    if (kind === WHOLE) {
      this.channels[channel] = rest.slice();
    } else {
      const rows = this.channels[channel];
      let next = (count + 7) >> 3;
      for (let row = 0; row < count; row += 1) {
        if ((rest[row >> 3] >> (row & 7)) & 1) rows[row] = rest[next++];
      }
    }
    this.frames += 1;
  }

  // Seconds since the Weaver was heard of, or more; null before it ever was.
  ageS() {
    if (!this.run || this.run.age_s === null) return null;
    return this.run.age_s + (performance.now() - this.runMs) / 1000;
  }

  value(row) {
    const byte = this.channels[1][row];
    if (!byte) return null;
    return this.scale.low + ((byte - 1) / 254) * (this.scale.high - this.scale.low);
  }
}
