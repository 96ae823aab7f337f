// How to undo a decision: a request that a button sends, or why there is none.

import { freshId } from "./link.js";

const NOTHING = "Nothing to undo: it changes no training state.";
const BY_HAND = (group) => `No undo by a click: start ${group} again as a standby, then migrate back.`;

const KINDS = {
  __proto__: null,
  knob: (action, story) => knobs({ [action.knob]: action.value }, action.worker, story),
  knobs: (action, story) => knobs(action.values, null, story),
  cordon: ({ node }) => propose(`uncordon ${node}`, { kind: "uncordon", node }),
  uncordon: ({ node }) => propose(`cordon ${node}`, { kind: "cordon", node }),
  pause: () => propose("resume training", { kind: "resume" }),
  admit: ({ group }) => propose(`drain ${group}`, { kind: "drain", group }, `Drain ${group}? It leaves after its current step.`),
  migrate: ({ group }) => ({ why: BY_HAND(group) }),
  drain: ({ group }) => ({ why: BY_HAND(group) }),
  evict: ({ group }) => ({ why: BY_HAND(group) }),
  rewind: () => ({ why: "Cannot be undone: the steps since the checkpoint are gone." }),
};
for (const kind of ["checkpoint", "dump", "probe", "preview", "landscape", "alert", "resume"]) KINDS[kind] = () => ({ why: NOTHING });

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
export function undoOf(story) {
  if (!story.granted || !/^(done|partial)/.test(story.outcome)) return null;
  return KINDS[story.action.kind]?.(story.action, story) ?? null;
}
