// Programs that are split over workers: a row for each replica, a block for each stage.

import { clock, el, fill, section, span, table } from "./dom.js";

const MOST_ROUTES = 32;
const MOST_LOSSES = 12;
const MOST_GENERATIONS = 8;

const layersOf = ({ first, last }) => (first === last ? `layer ${first}` : `layers ${first} to ${last}`);
const msOf = (seconds) => `${(1000 * seconds).toPrecision(3)} ms`;
const bytesOf = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function block(stage, measured) {
  const risk = stage.single ? el("span", { className: "bad" }, stage.single === stage.last - stage.first + 1 ? "one copy" : `${stage.single} with one copy`) : null;
  const slow = stage.slowness > 1 ? el("span", { className: "warn" }, `${stage.slowness.toFixed(1)} times as slow`) : null;
  const made = el("li", { className: stage.single ? "stage single" : "stage" },
    el("b", {}, stage.worker), stage.node ? el("span", { className: "faint" }, stage.node) : null,
    el("span", {}, layersOf(stage)), measured ? el("span", { className: "faint" }, msOf(stage.layer_s)) : null, slow, risk);
  made.style.flexGrow = stage.last - stage.first + 1;
  return made;
}

function routeParts(program) {
  const rows = program.routes.slice(0, MOST_ROUTES).map((route, replica) =>
    el("li", {}, el("span", { className: "faint" }, `replica ${replica}`), el("ol", { className: "route" }, route.map((stage) => block(stage, program.is_measured)))));
  const more = program.routes.length - rows.length;
  return [el("ol", { className: "routes" }, rows), more > 0 ? el("p", { className: "faint" }, `and ${more} more replicas`) : null];
}

function expertParts({ experts }) {
  if (!experts?.length) return [];
  const risky = experts.map((held, number) => [held, number]).filter(([held]) => held.length < 2);
  const rows = experts.slice(0, 64).map((held, number) =>
    el("li", { className: held.length ? (held.length < 2 ? "stage single" : "stage") : "stage lost" }, el("b", {}, `expert ${number}`), el("span", {}, held.join(", ") || "left out by the router")));
  const text = risky.length ? `${risky.length} of ${experts.length} experts have less than two holders.` : "Each expert has two holders at least.";
  return [el("h3", {}, "Experts"), el("p", { className: risky.length ? "warn" : "good" }, text), el("ul", { className: "route wraps" }, rows)];
}

function standbyText({ standbys }) {
  if (!standbys.length) return el("p", { className: "warn" }, "No standby: on a loss fewer workers share the layers.");
  const names = standbys.map((one) => `${one.worker}${one.node ? ` on ${one.node}` : ""}${one.left_out ? " (left out on request)" : ""}`);
  return el("p", {}, el("b", {}, "Standbys: "), names.join(", "));
}

function lossParts(program) {
  if (!program.losses.length) return el("p", { className: "faint" }, "What would follow on a loss is being computed.");
  const worst = [...program.losses].sort((one, other) => (other.lost_gpu_s ?? Infinity) - (one.lost_gpu_s ?? Infinity) || one.worker.localeCompare(other.worker));
  const rows = worst.slice(0, MOST_LOSSES).map((one) => {
    const cells = one.why
      ? [["what follows", one.why], ["a step", program.is_measured ? msOf(one.step_s) : "–"], ["stall", span(one.stall_s)], ["copied", bytesOf(one.copied_bytes)], ["GPU-seconds lost", one.lost_gpu_s.toFixed(1)]]
      : [["what follows", "the program ends: layers would be lost"]];
    return el("tr", {}, el("th", { scope: "row" }, one.worker), cells.map(([name, text]) => el("td", { "data-name": name, className: one.why ? "" : "bad", colSpan: one.why ? 1 : 5 }, text)));
  });
  const more = new Set(program.routes.flatMap((route) => route.map((stage) => stage.worker))).size - rows.length;
  return [table(["If lost", "What follows", "A step", "Stall", "Copied", "GPU-seconds lost"], rows), more > 0 ? el("p", { className: "faint" }, `and ${more} more workers${worst.length > rows.length ? ", with cheaper answers as far as they were computed" : ""}`) : null];
}

function historyParts({ generations }) {
  const rows = generations.slice(0, MOST_GENERATIONS).map((one) =>
    el("li", {}, el("b", {}, `Generation ${one.number}`), ` at ${clock(one.began_ns / 1e9)}: ${one.why || "first"}`,
      el("span", { className: "faint" }, [one.cause ? `${one.cause}; workers waited ${span(one.took_s)}` : one.why === "first" ? "" : "planned", one.committed >= 0 ? `after step ${one.committed}` : ""].filter(Boolean).map((text) => `; ${text}`).join(""))));
  return el("ul", { className: "plain" }, rows);
}

function parts(program) {
  const name = `Role ${program.role}`;
  if (!program.routes.length) return [el("h3", {}, name), el("p", { className: "warn" }, program.reachable ? `No generation yet: ${program.waits_for} workers are missing.` : "The rendezvous cannot be reached.")];
  const single = program.single_copies.length;
  return [
    el("h3", {}, `${name}: generation ${program.generation}`),
    el("p", { className: program.phase === "running" ? "" : "warn" }, `${program.phase}, after step ${program.committed}; ${program.is_measured ? `${msOf(program.step_s)} a step estimated, ${(100 * program.bubble).toFixed(0)} % of it waiting` : "layers are not measured yet"}`),
    program.reachable ? null : el("p", { className: "bad" }, "The rendezvous cannot be reached: this is the last known state. Training goes on."),
    single ? el("p", { className: "bad" }, `${single} of ${program.layers} layers have one copy: the loss of its worker ends the program.`) : el("p", { className: "good" }, "Each layer has two copies at least."),
    program.offer ? el("p", { className: "warn" }, `A planned change is possible: ${program.offer.why}; a step ${msOf(program.offer.step_s)} in place of ${msOf(program.offer.present_step_s)}, for a stall of ${span(program.offer.stall_s)}.`) : null,
    ...routeParts(program), standbyText(program), ...expertParts(program),
    el("h3", {}, "If a worker is lost"), ...[lossParts(program)].flat(),
    el("h3", {}, "Generations"), historyParts(program),
  ];
}

export class ProgramPanel {
  constructor(store) {
    this.store = store;
    this.place = el("div");
    this.part = section("Pipeline", { className: "wide" }, this.place);
  }

  update() {
    const { programs } = this.store;
    this.part.hidden = !programs.length;
    fill(this.place, JSON.stringify(programs), () => programs.flatMap(parts));
  }
}
