// Colours that people who see few of them tell apart: Okabe and Ito's for states, and cividis for
// values, whose lightness alone says as much.

export const STATE_COLOURS = {
  unknown: "#9aa4ae",
  standby: "#56b4e9",
  joining: "#cc79a7",
  training: "#009e73",
  paused: "#f0e442",
  draining: "#0072b2",
  left: "#c7ccd1",
  ended: "#dfe3e7",
  silent: "#e69f00",
  failed: "#d55e00",
};

const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];

export function valueColour(byte) {
  if (!byte) return "transparent";
  const at = ((byte - 1) / 254) * (CIVIDIS.length - 1);
  const low = Math.floor(at);
  const high = Math.min(low + 1, CIVIDIS.length - 1);
  const mix = CIVIDIS[low].map((one, i) => Math.round(one + (CIVIDIS[high][i] - one) * (at - low)));
  return `rgb(${mix.join(" ")})`;
}

export const VALUE_COLOURS = Array.from({ length: 256 }, (_, byte) => valueColour(byte));
