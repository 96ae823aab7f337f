// One worker: its state and values, a chart since it was selected, its events, and actions on it.

import { Chart } from "./charts.js";
import { button, el, fill, section, span } from "./dom.js";
import { titleOf, valueOf } from "./metrics.js";
import { keyOf, lineItem, logItem, storyItem } from "./record.js";

const MOST_POINTS = 1200;
const MOST_EVENTS = 20;

export class OneWorker {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.name = "";
    this.head = el("h3");
    this.facts = el("dl", { className: "facts" });
    this.acts = el("div", { className: "row" });
    this.pick = el("select", { "aria-label": "metric of this worker", onchange: () => this.update() });
    this.plots = el("div", {}, el("label", {}, "since it was selected: ", this.pick));
    this.events = el("ol", { className: "record" });
    this.parts = [
      section("Selected worker", { className: "wide" }, this.head, this.acts, this.facts),
      section("Metrics of the worker", {}, this.plots),
      section("Events of the worker", {}, this.events),
    ];
    this.forget();
  }

  choose(name) {
    if (name !== this.name) this.forget();
    this.name = name;
    this.store.worker = null;
  }

  forget() {
    this.points = new Map();
    this.latest = null;
    this.chart?.place.remove();
    this.chart = null;
  }

  update() {
    const worker = this.store.worker?.worker === this.name ? this.store.worker : null;
    for (const part of this.parts) part.hidden = !worker;
    if (!worker) return;
    this.keep(worker);
    fill(this.head, worker.worker, () => worker.worker);
    fill(this.facts, `${this.name} ${JSON.stringify(worker)}`, () => this.factsOf(worker));
    const why = this.act.lock();
    fill(this.acts, JSON.stringify([worker.worker, worker.group, worker.node, why]), () => this.actsOf(worker, why));
    this.plot();
    this.showEvents(worker, why);
  }

  // The dashboard sends its values twice a second: a point for each new message.
  keep(worker) {
    const now = this.store.run.now_s;
    if (this.latest === worker) return;
    this.latest = worker;
    for (const [metric, value] of Object.entries(worker.metrics)) {
      if (!this.points.has(metric)) this.points.set(metric, []);
      const points = this.points.get(metric);
      if (points.length && points[points.length - 1][0] >= now) continue;
      points.push([now, value, value, value]);
      if (points.length > MOST_POINTS) points.shift();
    }
  }

  plot() {
    const metrics = [...this.points.keys()];
    this.plots.hidden = !metrics.length;
    const usual = ["step_time_s", "loss"].find((name) => this.points.has(name)) ?? metrics[0];
    const chosen = this.points.has(this.pick.value) ? this.pick.value : usual;
    fill(this.pick, metrics.join(), () => metrics.map((name) => el("option", { value: name, selected: name === chosen }, titleOf(name))));
    if (!chosen) return;
    if (this.chart?.metric !== chosen) {
      this.chart?.place.remove();
      this.chart = new Chart(chosen, { isSingle: true });
      this.plots.append(this.chart.place);
    }
    this.chart.draw(this.points.get(chosen), []);
  }

  // Decisions that name it, its group or its node; other events; and its log.
  showEvents(worker, why) {
    const names = [worker.worker, worker.group, worker.node].filter(Boolean);
    const has = (text) => names.length > 0 && text.split(/[\s,]+/).some((word) => names.includes(word));
    const events = [
      ...[...this.store.stories.values()].filter((story) => has(story.summary)).map((story) => [story, (one) => storyItem(one, this.act)]),
      ...this.store.lines.filter((line) => line.worker === worker.worker || has(line.text)).map((line) => [line, lineItem]),
      ...this.store.logs.filter((line) => line.worker === worker.worker).map((line) => [line, logItem]),
    ].sort(([a], [b]) => b.version - a.version).slice(0, MOST_EVENTS);
    fill(this.events, `${why} ${events.map(([one]) => (one.action ? keyOf(one) : one.version))}`, () =>
      events.length ? events.map(([one, item]) => item(one)) : el("li", { className: "faint" }, "No events yet."));
  }

  factsOf(worker) {
    const step = worker.step < 0 ? "none yet" : worker.step;
    const rows = Object.entries({ State: worker.state, Step: step, "Last report": `${span(worker.seen_s)} ago`, "Replica group": worker.group, ...(worker.role === "trainer" ? {} : { Role: worker.role }), Node: worker.node, Rack: worker.rack || "–", ...Object.fromEntries(Object.entries(worker.metrics).map(([name, value]) => [titleOf(name), valueOf(name, value)])) });
    return rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))));
  }

  actsOf({ worker, group, node }, why) {
    const acts = [
      ["Collect its stacks", "changes nothing in training", { kind: "dump", worker }],
      [`Migrate ${group} to a standby`, `${group} ends once the standby has joined`, { kind: "migrate", group }, `Migrate ${group} to a standby? ${group} ends once the standby has joined.`],
      [`Drain ${group}`, `${group} ends after its current step`, { kind: "drain", group }, `Drain ${group}? It ends after its current step.`],
      [`Evict ${group}`, "its process ends, the others go on", { kind: "evict", group }, `Evict ${group}? Its process ends, and the others go on without it.`],
      [`Cordon ${node}`, "no standby on it is used", { kind: "cordon", node }, `Cordon ${node}? No standby on it is used until it is uncordoned.`],
      [`Uncordon ${node}`, "it may be used again", { kind: "uncordon", node }],
    ];
    return acts.map(([text, consequence, action, question]) => {
      const made = button(text, why, () => this.act.propose(action, question), { className: question ? "danger" : "" });
      made.append(el("small", {}, consequence));
      return made;
    });
  }
}
