// Colours that colour-blind people can distinguish: Okabe and Ito's for states and for values beside
// the median, cividis for values without one.

export const STATE_COLOURS = {
  unknown: "#9aa4ae",
  standby: "#56b4e9",
  joining: "#cc79a7",
  training: "#009e73",
  paused: "#f0e442",
  draining: "#0072b2",
  left: "#c7ccd1",
  ended: "#dfe3e7",
  unreachable: "#e69f00",
  failed: "#d55e00",
};
export const SLOW = "#e69f00";

const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];
const NEUTRAL = [150, 158, 166], BELOW = [86, 180, 233], ABOVE = [240, 200, 60];
const FAR = "#d55e00", LOW = 0.5;
export const USUAL = 1.1; // times the median, and one by this: no difference to speak of

function mix(one, other, share) {
  return `rgb(${one.map((part, i) => Math.round(part + (other[i] - part) * Math.max(0, Math.min(1, share)))).join(" ")})`;
}

export function valueColour(byte) {
  if (!byte) return "transparent";
  const at = ((byte - 1) / 254) * (CIVIDIS.length - 1);
  const low = Math.floor(at);
  return mix(CIVIDIS[low], CIVIDIS[Math.min(low + 1, CIVIDIS.length - 1)], at - low);
}

// Grey near the median; towards blue below it, towards yellow above it, and red from ``far`` on.
export function ratioColour(ratio, far) {
  if (ratio > far) return FAR;
  if (ratio > USUAL) return mix(NEUTRAL, ABOVE, 0.3 + (0.7 * (ratio - USUAL)) / (far - USUAL));
  if (ratio < 1 / USUAL) return mix(NEUTRAL, BELOW, (1 / USUAL - ratio) / (1 / USUAL - LOW));
  return mix(NEUTRAL, NEUTRAL, 0);
}

export const VALUE_COLOURS = Array.from({ length: 256 }, (_, byte) => valueColour(byte));

// Of the phases of a recovery: neighbours differ in brightness.
export const PHASE_COLOURS = {
  detect: "#9aa4ae",
  decide: "#dfe3e7",
  failed_starts: "#d55e00",
  relaunch: "#5b6770",
  import: "#0072b2",
  join: "#c7ccd1",
  build: "#56b4e9",
  compile: "#332288",
  restore: "#e69f00",
  data_loader: "#f0e442",
  quorum: "#117733",
  state_transfer: "#cc79a7",
  first_step: "#009e73",
};
