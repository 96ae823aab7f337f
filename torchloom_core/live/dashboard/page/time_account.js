// Goodput: the share of the training ranks' time that went into useful steps; standbys are separate.

import { STATE_COLOURS } from "./colours.js";
import { clock, el, span, swatch } from "./dom.js";

const KINDS = [
  ["useful", "useful steps", STATE_COLOURS.training],
  ["recomputed", "recomputed after going back to a checkpoint", STATE_COLOURS.joining],
  ["stalled", "stalled, joining or paused", STATE_COLOURS.unreachable],
  ["down", "unreachable or failed", STATE_COLOURS.failed],
];

function sumOf(account) {
  return KINDS.reduce((sum, [kind]) => sum + (account?.[kind] ?? 0), 0);
}

// In percent; null before any rank was in training.
export function goodputOf(account) {
  const whole = sumOf(account);
  return whole > 0 ? (100 * account.useful) / whole : null;
}

function percent(share) {
  return share === null || share === undefined ? "" : `${(100 * share).toFixed(0)} %`;
}

// Changes only when what is shown does.
export function accountKey(account, waiting) {
  const whole = sumOf(account);
  return `${KINDS.map(([kind]) => Math.round((1000 * (account?.[kind] ?? 0)) / whole))} ${span(whole)} ${span(account?.standby ?? 0)} ${percent(waiting)}`;
}

export function accountParts(account, waiting) {
  const whole = sumOf(account);
  if (!whole) return el("p", { className: "faint" }, "No rank has trained yet.");
  const shares = KINDS.map(([kind, text, colour]) => [((100 * account[kind]) / whole).toFixed(1), text, colour]);
  const parts = shares.map(([share, , colour]) => {
    const part = el("span");
    part.style.background = colour;
    part.style.width = `${share}%`;
    return part;
  });
  return [
    el("p", { className: "big" }, `Goodput ${shares[0][0]} %`),
    el("p", {}, "Time in steps that were not lost. Waiting for a slower rank within a step counts as useful; standbys are not counted."),
    percent(waiting) ? el("p", { className: waiting >= 0.2 ? "warn" : "" }, `Waiting for the slowest rank: ${percent(waiting)} of step time now, averaged over the ranks.`) : null,
    el("div", { className: "bar", "aria-hidden": "true" }, parts),
    el("ul", { className: "plain" }, shares.map(([share, text, colour]) => el("li", {}, swatch(colour), `${share} % ${text}`))),
    el("p", { className: "faint" }, `Of ${span(whole)} of rank time since ${clock(account.since_s)}, when this dashboard started.`),
    account.standby ? el("p", {}, swatch(STATE_COLOURS.standby), `Standbys idled for ${span(account.standby)} of rank time, not counted above.`) : null,
  ];
}
