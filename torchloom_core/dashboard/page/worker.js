// One worker: all that is known of it, its values since it was chosen, and what was said of it.

import { Chart } from "./charts.js";
import { button, el, fill, number, span } from "./dom.js";
import { lineItem, logItem, storyItem } from "./record.js";

const MOST_POINTS = 1200;
const MOST_SAID = 20;
const HINT = "Choose a worker: with the mouse, the arrows and Enter, or by its name.";

export class OneWorker {
  constructor(known, act) {
    this.known = known;
    this.act = act;
    this.name = "";
    this.facts = el("div");
    this.acts = el("div", { className: "row" });
    this.pick = el("select", { "aria-label": "plot of this worker", onchange: () => this.update() });
    this.plots = el("div", {}, el("label", {}, "since it was chosen, ", this.pick));
    this.said = el("ol", { className: "record" });
    this.parts = [
      el("section", { "aria-label": "One worker" }, el("h2", {}, "One worker"), this.facts, this.acts),
      el("section", { "aria-label": "Its values" }, el("h2", {}, "Its values"), this.plots),
      el("section", { "aria-label": "Said of it" }, el("h2", {}, "Said of it"), this.said),
    ];
    this.forget();
  }

  choose(name) {
    if (name !== this.name) this.forget();
    this.name = name;
    this.known.worker = null;
  }

  forget() {
    this.points = new Map();
    this.latest = null;
    this.chart?.place.remove();
    this.chart = null;
  }

  update() {
    const worker = this.known.worker?.worker === this.name ? this.known.worker : null;
    if (worker) this.keep(worker);
    fill(this.facts, `${this.name} ${JSON.stringify(worker)}`, () => this.factsOf(worker));
    const why = this.act.lock();
    fill(this.acts, JSON.stringify([worker?.worker, worker?.group, worker?.node, why]), () => (worker ? this.actsOf(worker, why) : []));
    this.plot();
    this.tell(worker);
  }

  // What the dashboard says of it twice a second, a point each time that it was told anew.
  keep(worker) {
    const now = this.known.run.now_s;
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
    fill(this.pick, metrics.join(), () => metrics.map((name) => el("option", { value: name, selected: name === chosen }, name)));
    if (!chosen) return;
    if (this.chart?.metric !== chosen) {
      this.chart?.place.remove();
      this.chart = new Chart(chosen);
      this.plots.append(this.chart.place);
    }
    this.chart.draw(this.points.get(chosen), []);
  }

  // Decisions that name it, its group or its node; lines of the record and of its own log.
  tell(worker) {
    const names = worker ? [worker.worker, worker.group, worker.node].filter(Boolean) : [];
    const has = (text) => names.length > 0 && text.split(/[\s,]+/).some((word) => names.includes(word));
    const told = [
      ...[...this.known.stories.values()].filter((story) => has(story.wish)).map((story) => [story, storyItem]),
      ...this.known.lines.filter((line) => line.worker === worker?.worker || has(line.text)).map((line) => [line, lineItem]),
      ...this.known.logs.filter((line) => line.worker === worker?.worker).map((line) => [line, logItem]),
    ].sort(([a], [b]) => b.version - a.version).slice(0, MOST_SAID);
    fill(this.said, told.map(([one]) => one.version).join(), () =>
      told.length ? told.map(([one, item]) => item(one)) : el("li", { className: "faint" }, "Nothing so far."));
  }

  factsOf(worker) {
    if (!worker) return el("p", { className: "faint" }, this.name ? `${this.name} ...` : HINT);
    const rows = Object.entries({ state: worker.state, step: worker.step, "heard of": `${span(worker.heard_s)} ago`, group: worker.group, node: worker.node, rack: worker.rack || "–", ...Object.fromEntries(Object.entries(worker.metrics).map(([name, value]) => [name, number(value)])) });
    return [el("h3", {}, worker.worker), el("table", {}, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, String(value))))))];
  }

  actsOf({ worker, group, node }, why) {
    const acts = [
      ["collect its stacks", { kind: "dump", worker }],
      [`move ${group} to a standby`, { kind: "migrate", group }, `Have a standby take the place of ${group}? ${group} ends once that has joined.`],
      [`drain ${group}`, { kind: "drain", group }, `Drain ${group}? It ends after its step.`],
      [`evict ${group}`, { kind: "evict", group }, `Evict ${group}? The others go on without it.`],
      [`cordon ${node}`, { kind: "cordon", node }, `Cordon ${node}? Nobody new is put on it.`],
      [`uncordon ${node}`, { kind: "uncordon", node }],
    ];
    return acts.map(([text, action, question]) => button(text, why, () => this.act.propose(action, question)));
  }
}
