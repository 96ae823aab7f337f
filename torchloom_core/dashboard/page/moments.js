// What was said and done at which moment: each in the lane of its kind, with the line it is told in.

export const LANES = ["faults", "forecasts", "verdicts", "commands", "outcomes", "notes"];

const OF_LINES = {
  __proto__: null, // a record may be of any kind, such as "constructor"
  fault: ["faults", "\u2715", "--danger"],
  forecast: ["forecasts", "\u25b2", "--warn"],
  annotation: ["notes", "\u270e", "--ink"],
};
const ASIDE = ["preview", "landscape", "alert", "dump"]; // what no rank's training has to do with
const FAILED = ["faults", "\u2715", "--danger"];

const OF_STORIES = {
  __proto__: null,
  verdict: (story) => (story.granted ? ["verdicts", "\u25cf", "--accent", "granted"] : ["verdicts", "\u25cb", "--faint", "denied"]),
  issued: () => ["commands", "\u25b7", "--accent", "commands sent"],
  applied: () => ["commands", "\u25b6", "--accent", "first applied"],
  outcome: (story) => (story.outcome.startsWith("done") ? ["outcomes", "\u25a0", "--good", "done"] : ["outcomes", "\u25a1", "--warn", story.outcome.split(":")[0]]),
  judged: (story) => (story.judged.startsWith("hurt") ? ["outcomes", "\u25bc", "--danger", "hurt"] : ["outcomes", "\u25c6", "--good", story.judged.split(":")[0]]),
};

export const SYMBOLS = [
  ["\u2715", "a fault"], ["\u25b2", "at risk"], ["\u25cf", "granted"], ["\u25cb", "denied"], ["\u25b7", "sent"], ["\u25b6", "first applied"],
  ["\u25a0", "done"], ["\u25a1", "in part, or undone"], ["\u25c6", "did no harm, or was not judged"], ["\u25bc", "hurt"], ["\u270e", "an annotation"],
];

// In the order of time.
export function momentsOf(known) {
  const found = [];
  for (const line of known.lines) {
    const kind = OF_LINES[line.kind] ?? (line.kind.endsWith("_failed") ? FAILED : null);
    if (kind) found.push({ at: line.at_s, lane: kind[0], glyph: kind[1], colour: kind[2], text: line.text, line });
  }
  for (const story of known.stories.values()) {
    for (const [name, at] of Object.entries(story.moments)) {
      const kind = OF_STORIES[name]?.(story);
      if (kind) found.push({ at, lane: kind[0], glyph: kind[1], colour: kind[2], text: `${kind[3]}: ${story.wish} of ${story.by}`, story });
    }
  }
  return found.sort((one, other) => one.at - other.at);
}

// What a series shows of them by a line: who failed, and what was granted that acts on the run.
export function lined(moments) {
  return moments.filter(({ lane, story }) => lane === "faults" || (lane === "verdicts" && story.granted && !ASIDE.includes(story.wish.split(" ")[0]))).map(({ at, colour }) => [at, colour]);
}
