// The state of the run, assembled from the dashboard's updates.

const WHOLE = 1;
const HEADER_BYTES = 24;
const MOST_STORIES = 1000; // as many as the dashboard stores
const MOST_LINES = 2500;
const MOST_POINTS = 3600;
const MOST_SAVES = 300; // as many as the dashboard stores

export class RunStore {
  constructor() {
    this.run = null;
    this.runMs = -Infinity;
    this.series = new Map();
    this.knobs = [];
    this.recoveries = [];
    this.programs = [];
    this.tiers = [];
    this.backtest = {};
    this.statistics = {};
    this.worker = null;
    this.stateFrames = 0;
    this.forget();
  }

  // After a reconnect the dashboard sends everything again.
  forget() {
    this.landscape = null;
    this.preview = null;
    this.stories = new Map();
    this.saves = new Map(); // of checkpoints, by id, the newest change last
    this.places = [];
    this.placesVersion = 0;
    this.lines = [];
    this.logs = [];
    this.channels = [new Uint8Array(0), new Uint8Array(0)];
    this.scale = { low: 0, high: 1 };
    this.extremes = new Map(); // of the coloured metric: exact values by row, the largest first
    this.median = null;
  }

  take(update) {
    if (update.run) {
      this.run = update.run;
      this.runMs = update.run.sinceMs;
    }
    if (update.places) {
      const { first, columns } = update.places;
      this.places.length = first;
      columns[0].forEach((_, row) => this.places.push(columns.map((column) => column[row])));
      this.placesVersion += 1;
    }
    if (update.extremes) {
      this.extremes = new Map(update.extremes);
      this.median = update.median;
    }
    if (update.knobs) this.knobs = update.knobs;
    if (update.recoveries) this.recoveries = update.recoveries;
    if (update.programs) this.programs = update.programs;
    if (update.tiers) this.tiers = update.tiers;
    for (const save of update.saves ?? []) {
      this.saves.delete(save.id);
      this.saves.set(save.id, save);
    }
    while (this.saves.size > MOST_SAVES) this.saves.delete(this.saves.keys().next().value);
    if (update.backtest) this.backtest = update.backtest;
    if (update.statistics) this.statistics = update.statistics;
    if (update.worker) this.worker = update.worker;
    if (update.preview) this.preview = update.preview;
    if (update.landscape) this.takeLandscape(update.landscape);
    for (const id of update.merged ?? []) this.stories.delete(id);
    for (const story of update.stories ?? []) {
      this.stories.delete(story.id);
      this.stories.set(story.id, story);
    }
    while (this.stories.size > MOST_STORIES) this.stories.delete(this.stories.keys().next().value);
    for (const [stored, some] of [[this.lines, update.lines], [this.logs, update.logs]]) {
      stored.push(...(some ?? []));
      if (stored.length > MOST_LINES) stored.splice(0, stored.length - MOST_LINES);
    }
    for (const [metric, points] of Object.entries(update.series ?? {})) this.addPoints(metric, points);
  }

  // Each point comes once; `new` marks another landscape.
  takeLandscape(update) {
    const before = update.new ? null : this.landscape;
    this.landscape = { ...update, line: [...(before?.line ?? []), ...update.line], cells: [...(before?.cells ?? []), ...update.cells] };
  }

  addPoints(metric, points) {
    const series = this.series.get(metric) ?? [];
    while (series.length && series[series.length - 1][0] >= points[0][0]) series.pop();
    series.push(...points);
    if (series.length > MOST_POINTS) series.splice(0, series.length - MOST_POINTS);
    this.series.set(metric, series);
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
    if (channel === 0) this.stateFrames += 1;
  }

  // The age of the Weaver's last answer at most, seconds; null before the first.
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
