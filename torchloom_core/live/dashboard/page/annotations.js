// The events of a run in time: lanes of the timeline, and annotations on the charts.

import { labelOf } from "./charts.js";

export const LANES = ["faults", "forecasts", "verdicts", "commands", "outcomes", "annotations"];

const OF_LINES = {
  __proto__: null, // a record may be of any kind, such as "constructor"
  fault: ["faults", "\u2715", "--danger"],
  forecast: ["forecasts", "\u25b2", "--warn"],
  annotation: ["annotations", "\u270e", "--ink"],
};
const NOT_TRAINING = ["preview", "landscape", "alert", "dump"]; // actions that change no rank's training
const GRANTED = "\u25cf";
const ENDED = { __proto__: null, expiry: "expired", lapsed: "lapsed", approval: "not granted" };
const FAILED = ["faults", "\u2715", "--danger"];

const OF_STORIES = {
  __proto__: null,
  waits: () => ["verdicts", "\u25d4", "--warn", "waits for approval"],
  verdict: ({ granted, rule }) => (granted ? ["verdicts", GRANTED, "--accent", "granted"] : ["verdicts", "\u25cb", "--faint", ENDED[rule] ?? "denied"]),
  issued: () => ["commands", "\u25b7", "--accent", "first command sent"],
  applied: () => ["commands", "\u25b6", "--accent", "first command applied"],
  outcome: (story) => (story.outcome.startsWith("done") ? ["outcomes", "\u25a0", "--good", "done"] : ["outcomes", "\u25a1", "--warn", story.outcome.split(":")[0]]),
  judged: (story) => {
    if (story.judged.startsWith("did harm")) return ["outcomes", "\u25bc", "--danger", "did harm"];
    return story.judged.startsWith("not") ? ["outcomes", "\u25c7", "--faint", "not judged"] : ["outcomes", "\u25c6", "--good", "did no harm"];
  },
};

export const SYMBOLS = new Map([
  ["\u2715", "fault"], ["\u25b2", "worker at risk"], [GRANTED, "granted"], ["\u25cb", "denied, expired or lapsed"], ["\u25d4", "waits for approval"], ["\u25b7", "first command sent"], ["\u25b6", "first command applied"],
  ["\u25a0", "done"], ["\u25a1", "partial or undone"], ["\u25c6", "guard: did no harm"], ["\u25c7", "guard: not judged"], ["\u25bc", "guard: did harm"], ["\u270e", "annotation"],
]);

// In the order of time.
export function eventsOf(store) {
  const found = [];
  for (const line of store.lines) {
    const kind = OF_LINES[line.kind] ?? (line.kind.endsWith("_failed") ? FAILED : null);
    if (kind) found.push({ at: line.at_s, lane: kind[0], glyph: kind[1], colour: kind[2], text: line.text, line });
  }
  for (const story of store.stories.values()) {
    for (const [name, at] of Object.entries(story.moments)) {
      const kind = OF_STORIES[name]?.(story);
      if (kind) found.push({ at, lane: kind[0], glyph: kind[1], colour: kind[2], text: `${kind[3]}: ${story.summary} by ${story.by}`, story });
    }
  }
  return found.sort((one, other) => one.at - other.at);
}

// The annotations of a chart: failed workers, people's notes, and granted actions on the run.
export function marksOf(events) {
  return events
    .filter(({ lane, glyph, story }) => lane === "faults" || lane === "annotations" || (lane === "verdicts" && glyph === GRANTED && !NOT_TRAINING.includes(story.action.kind)))
    .map(({ at, colour, text, story, line }) => ({ at, colour, text, label: labelOf(story ? story.summary.replace(/^knobs? /, "") : line.kind === "annotation" ? line.text.replace(/^.*?: /, "") : line.worker || line.kind) }));
}

// Legend entries of the marks that are there.
export function markLegend(marks) {
  const there = new Set(marks.map(({ colour }) => colour));
  return [["--accent", "action granted"], ["--danger", "worker or plugin failed"], ["--ink", "annotation"]].filter(([colour]) => there.has(colour));
}
