// The record: a story each proposal, from who asked to what it did, and a line for all else.

import { clock, el, many, number } from "./dom.js";

const SHOWN_HERE = /: torchloom (preview|landscape) TRAJECTORY shows it$/;

function landed(story) {
  const steps = Object.entries(story.steps);
  if (!steps.length) return "";
  const told = steps.slice(0, 4).map(([step, count]) => `${step < 0 ? "before a first step" : `at step ${step}`} on ${many(count, "rank")}`);
  const more = steps.length > 4 ? ` and at ${steps.length - 4} other steps` : "";
  return `applied ${told.join(", ")}${more}`;
}

export function state(story) {
  if (story.judged) return story.judged;
  if (story.outcome) return story.outcome;
  if (landed(story)) return landed(story);
  if (story.granted === false) return `denied by ${story.rule}${story.said && `: ${story.said}`}`;
  if (story.granted) return `granted by ${story.rule}`;
  return "proposed";
}

// As the end of a sentence that begins with what was wished for.
export function ended(story) {
  if (story.granted === false) return `was denied by ${story.rule}${story.said && `: ${story.said}`}`;
  if (story.outcome.startsWith("undone") && story.late.length) return `is undone: ${story.late[0]}`;
  return `is ${story.outcome.replace(SHOWN_HERE, "")}`;
}

function tone(story) {
  if (story.judged.startsWith("hurt") || story.outcome.startsWith("undone")) return "bad";
  if (story.granted === false || story.outcome.startsWith("partial")) return "warn";
  return story.outcome.startsWith("done") ? "good" : "";
}

// Who wants what, and how often it was said so far.
export function wished(story) {
  return [el("b", {}, story.by), " wants ", el("b", {}, story.wish), story.times > 1 ? ` (${story.times} times)` : ""];
}

export function storyItem(story, more = null) {
  const price = story.gain_gpu_s
    ? `gains ${number(story.gain_gpu_s)} GPU-s with probability ${number(story.confidence)}, costs ${number(story.cost_gpu_s)}`
    : "";
  const under = Object.entries(story.commands).filter(([word]) => word !== "applied");
  const verdict = story.granted === null ? "" : `${story.granted ? "granted" : "denied"} by ${story.rule}${story.said && `: ${story.said}`}`;
  return el(
    "li",
    { id: `story-${story.id}` },
    el("p", {}, el("span", { className: "faint" }, `${clock(story.at_s)} ${story.id} `), wished(story)),
    story.reason ? el("p", {}, story.reason) : null,
    price ? el("p", { className: "faint" }, price) : null,
    verdict ? el("p", {}, verdict) : null,
    landed(story) ? el("p", {}, landed(story)) : null,
    under.length ? el("p", { className: "faint" }, under.map(([word, count]) => `${count} ${word}`).join(", ")) : null,
    story.late.map((text) => el("p", { className: "warn" }, text)),
    el("p", { className: tone(story) }, [story.outcome, story.judged].filter(Boolean).join("; ")),
    more,
  );
}

export function lineItem(line) {
  const bad = line.kind === "fault" || line.kind.endsWith("_failed");
  return el("li", {}, el("span", { className: "faint" }, `${clock(line.at_s)} ${line.kind} `), el("span", { className: bad ? "bad" : "" }, line.text));
}

export function logItem(line) {
  const tone = { __proto__: null, error: "bad", critical: "bad", warning: "warn" }[line.kind] ?? "";
  return el("li", {}, el("span", { className: "faint" }, `${clock(line.at_s)} ${line.worker} `), el("span", { className: `${tone} lines`.trim() }, `${line.kind} ${line.text}`));
}
