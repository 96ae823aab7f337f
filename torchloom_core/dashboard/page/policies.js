// Each policy: what a backtest promised of it, beside what came of it in this run.

import { el, fill, moment, number } from "./dom.js";

const COLUMNS = ["policy", "a backtest promised", "granted here", "which promised", "came to", "and by the guard"];

function signed(value) {
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

function gain({ gain: told, unit, seeds }) {
  if (!told) return "is what all others were held against";
  const [scale, form, words] = unit === "goodput" ? [100, signed, "points of goodput over the same job without"] : [1, number, "times the progress of the best static mode"];
  const [value, low, high] = told.map((one) => (one === null ? null : form(scale * one)));
  return `${value}${low === null ? ` (too few seeds for an interval: ${seeds})` : ` [${low}, ${high}]`} ${words}`;
}

function promise(one) {
  const moves = one.moves ? `, ${Math.round((100 * one.right_moves) / one.moves)} % of its moves right` : "";
  const same = one.same ? "" : "; with other options than this config has";
  return el("p", { className: one.same ? "" : "faint" }, el("b", {}, `${one.arm} on ${one.trace}: `), `${gain(one)}; ${number(one.decisions)} decisions a run${moves}${same}`);
}

function counts(words) {
  return words.filter(([, count]) => count).map(([word, count]) => `${count} ${word}`).join(", ") || "–";
}

export class PolicyScreen {
  constructor(known) {
    this.known = known;
    this.report = el("p", { className: "faint" });
    this.body = el("tbody");
    const head = COLUMNS.map((name) => el("th", { scope: "col" }, name));
    this.parts = [
      el("section", { className: "wide", "aria-label": "Policies: promised and come of it" }, el("h2", {}, "Policies: what a backtest promised, and what came of them here"), this.report, el("div", { className: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), this.body)),
        el("p", { className: "faint" }, "What this run would have been without a policy nobody can see in one run: a promise is of many runs, with and without. Here stands what was done, and what the guard saw.")),
    ];
  }

  wanted() {
    return {};
  }

  update() {
    const { backtest, tallies, run } = this.known;
    const active = (run?.status?.plugins ?? []).filter((one) => one.kind === "policy").map((one) => one.name);
    const promises = backtest.promises ?? [];
    const names = [...new Set([...active, ...promises.flatMap((one) => one.policies), ...Object.keys(tallies)])];
    fill(this.report, JSON.stringify([backtest.path, backtest.at_s, backtest.trouble]), () => this.reportOf(backtest));
    this.report.className = backtest.trouble ? "bad" : "faint";
    fill(this.body, JSON.stringify([names, promises, tallies]), () => names.map((name) => this.row(name, promises.filter((one) => one.policies.includes(name)), tallies[name])));
  }

  reportOf({ path, at_s, trouble }) {
    if (trouble) return trouble;
    if (!path) return "There is no report of a backtest: torchloom evaluate writes one, and it is found in a folder NAME-evaluation beside the config, or by torchloom dashboard --report.";
    return `By ${path}, written ${moment(at_s)}.`;
  }

  row(name, promises, tally) {
    const cells = tally
      ? [
          `${tally.granted}${tally.denied ? `, ${tally.denied} denied` : ""}`,
          `${number(tally.net_gpu_s)} GPU-s`,
          counts([["done", tally.done], ["in part", tally.partial], ["undone", tally.undone]]),
          counts([["did no harm", tally.harmless], ["hurt", tally.hurt], ["not judged", tally.unjudged]]),
        ]
      : ["nothing was proposed", "–", "–", "–"];
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, promises.length ? promises.map(promise) : "–"), cells.map((text) => el("td", {}, text)));
  }
}
