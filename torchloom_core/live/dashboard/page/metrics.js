// Titles and units of metrics, from their names: `step_time_s` is "Step time (s)".

import { number } from "./dom.js";

const TITLES = { __proto__: null, compute_s: "Own work in a step (s)", lr: "Learning rate", grad_norm: "Gradient norm" };
const UNITS = [["_per_s", " per second"], ["_s", " (s)"], ["_bytes", " (bytes)"], ["_celsius", " (°C)"], ["_watts", " (W)"], ["_percent", " (%)"], ["_ratio", " (ratio)"], ["_total", " (total)"]];
const SHORT = { __proto__: null, s: "s", bytes: "B", celsius: "°C", watts: "W", percent: "%" };
const CAPITALS = /\b(gpu|cpu|ecc|xid|io|rss)\b/g;

export const USUAL_METRICS = ["loss", "step_time_s", "tokens_per_s", "samples_per_s", "grad_norm", "update_norm"];

export function titleOf(metric) {
  if (TITLES[metric]) return TITLES[metric];
  const [end, unit] = UNITS.find(([one]) => metric.endsWith(one)) ?? ["", ""];
  const words = metric.slice(0, metric.length - end.length).replaceAll("_", " ").replace(CAPITALS, (word) => word.toUpperCase());
  return words.charAt(0).toUpperCase() + words.slice(1) + unit;
}

export function isTime(metric) {
  return metric.endsWith("_s") && !metric.endsWith("_per_s");
}

function sizeOf(bytes) {
  const power = Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

// A value with its unit; a flag as yes or no.
export function valueOf(metric, value) {
  if (/_stopped$|^is_/.test(metric) && (value === 0 || value === 1)) return value ? "yes" : "no";
  if (metric.endsWith("_bytes") && value >= 1e4) return sizeOf(value);
  const unit = metric.endsWith("_per_s") ? "per s" : SHORT[metric.slice(metric.lastIndexOf("_") + 1)];
  return number(value) + (unit ? ` ${unit}` : "");
}
