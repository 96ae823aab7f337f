// The record: one item for each decision, from the proposal to its effect, and a line for other events.

import { button, clock, el, many, number } from "./dom.js";
import { freshId } from "./link.js";

export const WAITS = "approval"; // a proposal that is denied by this rule waits for approval
const SHOWN_HERE = /: torchloom (preview|landscape) TRAJECTORY shows it$/;
const PERSON = "person";
const RULES = { __proto__: null, net_gain: "it gains more than it costs", expiry: "not approved in time", lapsed: "its reason no longer holds" };

function appliedAt(story) {
  const steps = Object.entries(story.steps);
  if (!steps.length) return "";
  const parts = steps.slice(0, 4).map(([step, count]) => `${step < 0 ? "before the first step" : `at step ${step}`} on ${many(count, "rank")}`);
  return `applied ${parts.join(", ")}${steps.length > 4 ? ` and at ${steps.length - 4} other steps` : ""}`;
}

// The proposals that wait for approval and the nodes that are cordoned now, set by the page.
let pending = new Set();
let cordoned = new Set();

export function setNow({ waiting = [], cordoned: nodes = [] }) {
  pending = new Set(waiting.map((one) => one.proposal));
  cordoned = new Set(nodes);
}

export function isPending(story) {
  return story.rule === WAITS && pending.has(story.id);
}

// Changes whenever the item of a story does.
export function keyOf(story) {
  return `${story.id} ${story.version} ${isPending(story)} ${cordoned.has(story.action.node)}`;
}

// The newest change of a decision; the newest first.
export function changedAt(story) {
  return Math.max(story.at_s, ...Object.values(story.moments));
}

export function newestFirst(stories) {
  return [...stories].sort((one, other) => changedAt(other) - changedAt(one) || other.version - one.version);
}

const WAITED = / already waits for approval$/;

function verdictOf(story) {
  const { granted, rule, detail: text, reason } = story;
  if (granted === null) return "";
  const detail = reason && text.startsWith(reason) ? text.slice(reason.length).replace(/^[;,:\s]+/, "") : text;
  if (rule === WAITS && WAITED.test(detail)) return `repeat of ${detail.replace(WAITED, "")}, which ${pending.has(detail.replace(WAITED, "")) ? "waits" : "waited"} for approval`;
  if (rule === WAITS) return pending.has(story.id) ? "waiting for approval" : "no longer waiting: not approved";
  const why = detail || RULES[rule] || "";
  if (rule === "expiry") return `expired: ${why}`;
  if (rule === "lapsed") return `lapsed: ${RULES.lapsed}${detail ? `: ${detail.replace(`${RULES.lapsed}: `, "")}` : ""}`;
  if (rule === PERSON && why.startsWith("denied")) return why;
  return `${granted ? "granted" : "denied"}${rule === PERSON ? "" : ` by rule ${rule}`}${why && `: ${why}`}`;
}

export function stateOf(story) {
  return story.judged || outcomeOf(story) || appliedAt(story) || verdictOf(story) || "proposed";
}

function outcomeOf({ outcome }) {
  return outcome.replace(SHOWN_HERE, "");
}

// The end of a sentence that begins with the action.
export function endOf(story) {
  if (story.granted === false) return `was ${verdictOf(story)}`;
  if (story.outcome.startsWith("undone") && story.failures.length) return `is undone: ${story.failures[0]}`;
  return `is ${outcomeOf(story)}`;
}

function tone(story) {
  if (story.judged.startsWith("did harm") || story.outcome.startsWith("undone")) return "bad";
  if (story.granted === false || story.outcome.startsWith("partial")) return "warn";
  return story.outcome.startsWith("done") ? "good" : "";
}

export function headOf(story) {
  return [el("b", {}, story.summary), ` by ${story.by === PERSON ? "a person" : `policy ${story.by}`}`, story.times > 1 ? ` (${story.times} times)` : ""];
}

// --- how to undo a decision: a request that a button sends, or why there is none ---

const NOTHING = "Nothing to undo: it changes no training state.";
const STANDBY = (group, node) => `No undo by a click. Start ${group} again as a standby${node ? ` on another node than ${node}, which was slow` : ""} (TORCHLOOM_GROUP=${group} TORCHLOOM_ROLE=standby)`;

function migrateBack({ group }, story) {
  const joined = /(\S+)-\d+ joined/.exec(story.outcome)?.[1] ?? "GROUP, the one that replaced it";
  const slow = / on (\S+) takes /.exec(story.reason)?.[1];
  return { why: `${STANDBY(group, slow)}, then: torchloom migrate ${joined}.` };
}

const UNDO = {
  __proto__: null,
  knob: (action, story) => knobs({ [action.knob]: action.value }, action.worker, story),
  knobs: (action, story) => knobs(action.values, null, story),
  cordon: ({ node }) => (cordoned.has(node) ? propose(`uncordon ${node}`, { kind: "uncordon", node }) : { why: `Nothing to undo: ${node} is not cordoned any more.` }),
  uncordon: ({ node }) => propose(`cordon ${node}`, { kind: "cordon", node }),
  pause: () => propose("resume training", { kind: "resume" }),
  admit: ({ group }) => propose(`drain ${group}`, { kind: "drain", group }, `Drain ${group}? It leaves after its current step.`),
  migrate: migrateBack,
  drain: ({ group }) => ({ why: `${STANDBY(group)}, then: torchloom admit ${group}.` }),
  evict: ({ group }) => ({ why: `${STANDBY(group)}, then: torchloom admit ${group}.` }),
  rewind: () => ({ why: "Cannot be undone: the steps since the checkpoint are gone." }),
};
for (const kind of ["checkpoint", "dump", "probe", "preview", "landscape", "alert", "resume"]) UNDO[kind] = () => ({ why: NOTHING });

function propose(label, action, question = "") {
  return { label, press: (act) => act.propose(action, question) };
}

function knobs(values, worker, story) {
  if (story.judged.startsWith("did harm")) return { why: "Already undone: the guard rolled it back." };
  const names = Object.keys(values);
  if (names.some((name) => story.before[name] === undefined)) return { why: "The earlier value is not known here: set it on Knobs." };
  const changed = names.filter((name) => story.before[name] !== values[name]);
  if (!changed.length) return { why: "Nothing to undo: the value is the same as before." };
  const [knob, ...others] = changed;
  const text = changed.map((name) => `${name} = ${JSON.stringify(story.before[name])}`).join(", ");
  return {
    label: text,
    press: (act) => act.set(() => ({
      knob,
      value: story.before[knob],
      ...(worker && { worker }),
      ...(others.length && { also: Object.fromEntries(others.map((name) => [name, story.before[name]])) }),
      id: freshId(),
    })),
  };
}

// null: the decision has done nothing so far.
function undoOf(story) {
  if (!story.granted || !/^(done|partial)/.test(story.outcome)) return null;
  return UNDO[story.action.kind]?.(story.action, story) ?? null;
}

export function undoPart(story, act, isShort = false) {
  const undo = undoOf(story);
  if (!undo) return null;
  if (undo.why && isShort && undo.why === NOTHING) return null;
  if (undo.why) return el("p", { className: "faint" }, undo.why);
  return el("p", {}, button(`Undo: ${undo.label}`, act.lock(), () => undo.press(act)));
}

// Approve and deny, for a proposal that waits for approval.
export function approvalPart(proposal, act) {
  return el("div", { className: "row" },
    button(`Approve ${proposal}`, act.lock(), () => act.send("approve", { proposal })),
    button(`Deny ${proposal}`, act.lock(), () => act.deny(proposal)));
}

export function priceOf({ gain_gpu_s, cost_gpu_s, confidence }) {
  const net = number(gain_gpu_s * confidence - cost_gpu_s);
  return `gain if the reason is right ${number(gain_gpu_s)} GPU-s, probability ${number(confidence)}, cost ${number(cost_gpu_s)} GPU-s: expected net gain ${net} GPU-s`;
}

function madeAt(story) {
  return clock(changedAt(story)) === clock(story.at_s) ? "" : el("span", { className: "faint" }, ` proposed at ${clock(story.at_s)}`);
}

function verdictAt({ moments, rule }) {
  const at = rule === WAITS ? moments.waits : moments.verdict;
  return at ? el("span", { className: "faint" }, ` ${rule === WAITS ? "since" : "at"} ${clock(at)}`) : null;
}

export function storyItem(story, act) {
  const under = Object.entries(story.commands).filter(([word]) => word !== "applied");
  const result = [outcomeOf(story), story.judged].filter(Boolean).join("; ");
  return el(
    "li",
    { id: `story-${story.id}` },
    el("p", { title: story.id }, el("span", { className: "faint" }, `${clock(changedAt(story))} `), headOf(story), madeAt(story)),
    story.reason ? el("p", {}, story.reason) : null,
    story.gain_gpu_s ? el("p", { className: "faint" }, priceOf(story)) : null,
    verdictOf(story) ? el("p", {}, verdictOf(story), verdictAt(story)) : null,
    appliedAt(story) ? el("p", {}, appliedAt(story)) : null,
    under.length ? el("p", { className: "faint" }, `commands: ${under.map(([word, count]) => `${count} ${word}`).join(", ")}`) : null,
    story.failures.map((text) => el("p", { className: "warn" }, text)),
    result ? el("p", { className: tone(story) }, result) : null,
    undoPart(story, act),
  );
}

// A decision in two lines and its undo.
export function shortItem(story, act) {
  return el("li", {}, el("p", { title: story.id }, el("span", { className: "faint" }, `${clock(changedAt(story))} `), headOf(story), madeAt(story)), story.reason ? el("p", { className: "faint" }, story.reason) : null, el("p", { className: tone(story) }, stateOf(story)), undoPart(story, act, true));
}

export function lineItem(line) {
  const bad = line.kind === "fault" || line.kind.endsWith("_failed");
  return el("li", {}, el("span", { className: "faint" }, `${clock(line.at_s)} ${line.kind.replaceAll("_", " ")} `), el("span", { className: bad ? "bad" : "" }, line.text));
}

export function logItem({ at_s, worker, kind, text, times = 1, lastS = at_s }) {
  const tone = { __proto__: null, error: "bad", critical: "bad", warning: "warn" }[kind] ?? "";
  const repeats = times > 1 ? el("b", {}, ` ×${times}, the last at ${clock(lastS)}`) : null;
  return el("li", {}, el("span", { className: "faint" }, `${clock(at_s)} ${worker} `), el("span", { className: `${tone} lines`.trim() }, `${kind} ${text}`), repeats);
}
