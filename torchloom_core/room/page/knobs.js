// The table of knobs: what each takes, what is wanted, what it is, and a way to turn it and back.

import { el } from "./dom.js";
import { freshId } from "./link.js";

export function takes(spec) {
  const unit = spec.unit ? ` ${spec.unit}` : "";
  if (spec.kind === "choice") return spec.choices.join(" | ");
  const low = spec.low ?? null, high = spec.high ?? null;
  if (low === null && high === null) return spec.kind + unit;
  return `${spec.kind} ${low ?? ""}..${high ?? ""}${unit}`;
}

export function shown(value) {
  return typeof value === "string" ? value || "(none)" : JSON.stringify(value);
}

export function present(spec) {
  if (!spec.values.length) return "–";
  if (spec.values.length === 1 && !spec.others) return shown(spec.values[0][0]);
  const parts = spec.values.map(([value, count]) => `${shown(value)} on ${count}`);
  return parts.join(", ") + (spec.others ? `, others on ${spec.others}` : "");
}

function parsed(spec, text) {
  if (spec.kind === "bool") return text === "true";
  if (spec.kind === "int" || spec.kind === "float") return text.trim() === "" ? NaN : Number(text);
  return text;
}

export class Knobs {
  constructor(act) {
    this.act = act;
    this.before = new Map(); // of each knob, what it was before this page turned it
    this.drafts = new Map();
  }

  table(knobs, locked) {
    const rows = knobs.map((spec) => this.row(spec, locked));
    const head = ["knob", "takes", "lands", "wanted", "is", "turn it"].map((name) => el("th", { scope: "col" }, name));
    return el("div", { className: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
  }

  row(spec, locked) {
    const wanted = Object.entries(spec.wanted).map(([worker, value]) => (worker ? `${worker}: ${shown(value)}` : shown(value)));
    const cells = [takes(spec), spec.fence === "run" ? "on all ranks at one step" : "on each at its next step", wanted.join(", ") || "–", present(spec)];
    return el("tr", {}, el("th", { scope: "row", title: spec.doc ?? "" }, spec.name, spec.doc ? el("div", { className: "faint" }, spec.doc) : null), cells.map((text) => el("td", {}, text)), el("td", {}, this.form(spec, locked)));
  }

  form(spec, locked) {
    const value = this.drafts.get(spec.name) ?? (spec.values.length ? String(spec.values[0][0]) : "");
    const label = `new value of ${spec.name}`;
    const keep = (event) => this.drafts.set(spec.name, event.target.value);
    const options = spec.kind === "bool" ? ["true", "false"] : spec.choices ?? [];
    const input = options.length
      ? el("select", { "aria-label": label, disabled: locked, onchange: keep }, options.map((one) => el("option", { value: one, selected: one === value }, one)))
      : el("input", { "aria-label": label, disabled: locked, oninput: keep, value, inputmode: spec.kind === "order" ? "text" : "decimal" });
    const before = this.before.get(spec.name);
    const back = before === undefined ? null : el("button", { type: "button", disabled: locked, onclick: () => this.turn(spec, before, true) }, `back to ${shown(before)}`);
    const submit = (event) => {
      event.preventDefault();
      this.turn(spec, parsed(spec, input.value), false);
    };
    return el("form", { className: "row", onsubmit: submit }, input, el("button", { type: "submit", disabled: locked }, "set"), back);
  }

  async turn(spec, value, isBack) {
    if (typeof value === "number" && !Number.isFinite(value)) {
      this.act.say(`${spec.name}: need a number`, false);
      return;
    }
    const was = spec.values.length ? spec.values[0][0] : undefined;
    const body = { knob: spec.name, value, id: freshId() };
    let answer = await this.act.ask("knob.set", body);
    if (!answer.ok && answer.text.includes('"sure": true') && confirm(`${answer.text.split(";")[0]}\n\nSet it all the same?`)) {
      answer = await this.act.ask("knob.set", { ...body, id: freshId(), sure: true });
    }
    if (!answer.ok) return;
    this.drafts.delete(spec.name);
    if (isBack) this.before.delete(spec.name);
    else if (was !== undefined) this.before.set(spec.name, was);
  }
}
