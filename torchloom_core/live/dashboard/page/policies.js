// Policies: mode, what each one watches, what it did in this run, and what a backtest expected.

import { el, fill, moment, number, table } from "./dom.js";

const COLUMNS = ["Policy", "Mode", "Watches, and its status", "Proposals", "Expected net gain", "Outcome", "Guard", "Backtest"];
const MODES = { __proto__: null, act: "act", dry_run: "dry run: decides and records only", shadow: "shadow: records only" };
const WATCHES = {
  __proto__: null,
  thresholds: "metrics, by the rules in the config",
  straggler: "each rank's own work in a step against the median",
  hang: "groups that others wait for",
  silence: "workers, trainers and metrics that stop reporting",
  failure_forecast: "failure probabilities from its predictor",
  checkpoint_interval: "the rate of failures, and the cost of a checkpoint",
  lemon_nodes: "nodes that fail far more often than others",
  membership: "standbys that could train",
  loss_guard: "loss spikes and losses that are no number",
  uploads: "network load during uploads of checkpoints",
  allreduce_tuner: "bandwidth and the time of the allreduce",
};

function signed(value) {
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

function gainOf({ gain, unit, seeds }) {
  if (!gain) return "is what all others were compared with";
  const [scale, form, words] = unit === "goodput" ? [100, signed, "percentage points of goodput over the same job without"] : [1, number, "times the progress of the best static mode"];
  const [value, low, high] = gain.map((one) => (one === null ? null : form(scale * one)));
  return `${value}${low === null ? ` (too few seeds for an interval: ${seeds})` : ` [${low}, ${high}]`} ${words}`;
}

function expectation(one) {
  const moves = one.moves ? `, ${Math.round((100 * one.right_moves) / one.moves)} % of its moves right` : "";
  const same = one.same ? "" : "; with other options than this config has";
  return el("p", { className: one.same ? "" : "faint" }, el("b", {}, `${one.arm} on ${one.trace}: `), `${gainOf(one)}; ${number(one.decisions)} decisions per run${moves}${same}`);
}

function counts(words) {
  return words.filter(([, count]) => count).map(([word, count]) => `${count} ${word}`).join(", ");
}

export class PolicyScreen {
  constructor(store) {
    this.store = store;
    this.report = el("p", { className: "faint" });
    this.body = el("tbody");
    this.predictors = el("tbody");
    this.parts = [
      el("section", { className: "wide", "aria-label": "Policies" }, el("h2", {}, "Policies"), table(COLUMNS, this.body), this.report,
        el("p", { className: "faint" }, "A proposal that is repeated counts once. The net gain is gain × probability − cost, in useful GPU-seconds, as expected when the action was granted. One run cannot show what would have happened without a policy; a backtest compares many runs with and without it.")),
      el("section", { className: "wide", "aria-label": "Predictors" }, el("h2", {}, "Predictors"), table(["Predictor", "State", "Forecast now"], this.predictors)),
    ];
  }

  update() {
    const { backtest, statistics, run } = this.store;
    const { plugins = [], at_risk: risks = [] } = run?.status ?? {};
    const active = new Map(plugins.filter((one) => one.kind === "policy").map((one) => [one.name, one]));
    const expected = backtest.expectations ?? [];
    const names = [...new Set([...active.keys(), ...expected.flatMap((one) => one.policies), ...Object.keys(statistics)])];
    fill(this.report, JSON.stringify([backtest.path, backtest.at_s, backtest.trouble]), () => this.reportOf(backtest));
    this.report.className = backtest.trouble ? "bad" : "faint";
    const none = (columns, text) => el("tr", {}, el("td", { colSpan: columns, className: "faint" }, text));
    fill(this.body, JSON.stringify([names, plugins, expected, statistics, run?.status?.waiting?.length]), () => (names.length ? names.map((name) => this.row(name, active.get(name), expected.filter((one) => one.policies.includes(name)), statistics[name])) : none(COLUMNS.length, "No policy is configured. A table [policies.NAME] in the config adds one.")));
    const predictors = plugins.filter((one) => one.kind === "predictor");
    fill(this.predictors, JSON.stringify([predictors, risks]), () => (predictors.length ? predictors.map((one) => this.predictor(one, risks.filter((risk) => risk.predictor === one.name))) : none(3, "No predictor is configured. A table [predictors.NAME] in the config adds one.")));
  }

  reportOf({ path, at_s, trouble }) {
    if (trouble) return trouble;
    if (!path) return "No backtest report found. Write one with torchloom evaluate: it is looked for in a folder NAME-evaluation beside the config, or named by torchloom dashboard --report.";
    return `Backtest: ${path}, written ${moment(at_s)}.`;
  }

  row(name, plugin, expected, own) {
    const waits = (this.store.run?.status?.waiting ?? []).filter((one) => one.policy === name).length;
    const waiting = Math.min(waits, own?.denied ?? 0);
    const is = plugin?.state === "quarantined" ? "bad" : "";
    const watches = el("td", { "data-name": COLUMNS[2] }, WATCHES[name] ? el("div", {}, WATCHES[name]) : null, plugin?.detail ? el("div", { className: is || "faint" }, plugin.detail) : null);
    const cells = own
      ? [
          counts([["granted", own.granted], ["not granted", own.denied - waiting], ["waiting for approval", waiting]]) || "none that change the run",
          own.granted ? `${number(own.net_gpu_s)} GPU-s` : "–",
          counts([["done", own.done], ["partial", own.partial], ["undone", own.undone]]) || "–",
          counts([["did no harm", own.harmless], ["did harm", own.hurt], ["not judged", own.unjudged]]) || "–",
        ]
      : ["No proposals yet", "–", "–", "–"];
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", { "data-name": COLUMNS[1], className: is }, plugin ? MODES[plugin.state] ?? plugin.state : "not active"), watches, cells.map((text, n) => el("td", { "data-name": COLUMNS[3 + n] }, text)), el("td", { "data-name": COLUMNS[7] }, expected.length ? expected.map(expectation) : "no backtest"));
  }

  predictor({ name, state, detail }, risks) {
    const worst = risks.reduce((one, other) => (one && one.hazard >= other.hazard ? one : other), null);
    const text = worst ? `${worst.worker}: ${(100 * worst.hazard).toFixed(0)} % within ${number(worst.horizon_s)} s${worst.why ? `, ${worst.why}` : ""}` : "no worker at risk";
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", { "data-name": "State", className: state === "quarantined" ? "bad" : "" }, state === "act" ? "active" : state), el("td", { "data-name": "Forecast now" }, detail || text));
  }
}
