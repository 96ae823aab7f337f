// The strip of replica groups: one chip for each, the worst first.

import { SLOW, STATE_COLOURS } from "./colours.js";
import { el, fill } from "./dom.js";

const MOST = 24;
const BY_NAME = new Intl.Collator(undefined, { numeric: true });
const MOST_SORTED = 1000;
const WORST_FIRST = ["failed", "unreachable", "slow", "paused", "joining", "draining", "unknown", "training", "standby", "left", "ended"];
const ORDER = Object.fromEntries(WORST_FIRST.map((state, n) => [state, n]));
const SYMBOLS = { failed: "\u2715", unreachable: "?", slow: "\u25b2", paused: "\u2016", joining: "\u2026", draining: "\u2193", training: "\u2713", standby: "\u25cb" };

// Of each replica group: its worst rank's state, and how many ranks it has.
function groupsOf({ places, channels, run }) {
  const names = Object.keys(run.counts), slow = new Set(run.slow);
  const groups = new Map();
  places.forEach(([, group], row) => {
    const state = slow.has(row) ? "slow" : names[channels[0][row]] ?? "unknown";
    const known = groups.get(group);
    if (!known) groups.set(group, { group, state, row, ranks: 1 });
    else {
      known.ranks += 1;
      if (ORDER[state] < ORDER[known.state]) Object.assign(known, { state, row });
    }
  });
  const buckets = WORST_FIRST.map(() => []);
  for (const one of groups.values()) buckets[ORDER[one.state]].push(one);
  for (const bucket of buckets) if (bucket.length <= MOST_SORTED) bucket.sort((one, other) => BY_NAME.compare(one.group, other.group));
  return buckets.flat();
}

export function drawGroups(place, store, onOpen) {
  if (!store.run || !store.channels[0].length) return;
  const state = `${store.stateFrames} ${store.placesVersion} ${store.run.slow}`;
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  const groups = groupsOf(store);
  const shown = groups.slice(0, MOST);
  const key = `${groups.length} ${shown.map(({ group, state, ranks }) => `${group} ${state} ${ranks}`)}`;
  fill(place, key, () => [
    el("span", { className: "faint" }, `Replica groups (${groups.length})`),
    ...shown.map(({ group, state, row, ranks }) => {
      const chip = el("button", { type: "button", className: "chip", title: "Open its worst rank on Fleet", onclick: () => onOpen(row) }, `${SYMBOLS[state] ?? "\u2013"} ${group} ${state}${ranks > 1 ? ` (${ranks} ranks)` : ""}`);
      chip.style.setProperty("--state", state === "slow" ? SLOW : STATE_COLOURS[state]);
      return chip;
    }),
    groups.length > MOST ? el("span", { className: "faint" }, `and ${groups.length - MOST} more, none worse`) : null,
  ]);
}
