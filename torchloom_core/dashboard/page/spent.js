// Where the ranks' time went so far, as a bar and in words.

import { STATE_COLOURS } from "./colours.js";
import { clock, el, number } from "./dom.js";

const KINDS = [
  ["kept", "in steps that were kept", STATE_COLOURS.training],
  ["again", "in steps that were made again", STATE_COLOURS.joining],
  ["waiting", "there, and finishing no step", STATE_COLOURS.silent],
  ["standby", "standing by", STATE_COLOURS.standby],
  ["down", "silent or failed", STATE_COLOURS.failed],
];

// Shares of the whole, in percent; null before there is any time to tell of.
export function shares(spent) {
  const whole = KINDS.reduce((sum, [kind]) => sum + (spent?.[kind] ?? 0), 0);
  return whole > 0 ? { whole, of: Object.fromEntries(KINDS.map(([kind]) => [kind, ((100 * spent[kind]) / whole).toFixed(1)])) } : null;
}

export function spentParts(spent) {
  const told = shares(spent);
  if (!told) return el("p", { className: "faint" }, "Nothing yet.");
  const parts = KINDS.map(([kind, , colour]) => {
    const part = el("span");
    part.style.background = colour;
    part.style.width = `${told.of[kind]}%`;
    return part;
  });
  const words = KINDS.map(([kind, text, colour]) => {
    const swatch = el("span", { className: "swatch" });
    swatch.style.background = colour;
    return el("li", {}, swatch, `${told.of[kind]} % ${text}`);
  });
  return [el("div", { className: "bar", "aria-hidden": "true" }, parts), el("ul", { className: "plain" }, words), el("p", { className: "faint" }, `Of ${number(told.whole / 3600)} rank-hours since ${clock(spent.since_s)}.`)];
}
