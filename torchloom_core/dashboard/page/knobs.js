// The table of knobs: what each takes, what is wanted, what it is, and a way to turn it and back.

import { button, el, fill, lock } from "./dom.js";
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

function counted(values) {
  return values.map(([value, count]) => `${shown(value)} on ${count}`).join(", ");
}

export function present(spec) {
  const one = spec.values.length === 1 && !spec.others;
  const run = one ? shown(spec.values[0][0]) : counted(spec.values) + (spec.others ? `, others on ${spec.others}` : "");
  const aside = spec.standbys.filter(([value]) => !one || value !== spec.values[0][0]);
  return (run || "–") + (aside.length ? `; of standbys ${counted(aside)}` : "");
}

function parsed(spec, text) {
  if (spec.kind === "bool") return text === "true";
  if (spec.kind === "int" || spec.kind === "float") return text.trim() === "" ? NaN : Number(text);
  return text;
}

const TRY = "try";
const NOBODY_TRIES = "no standby tries this out: a script's Preview has to offer the knob";
const COLUMNS = ["knob", "takes", "lands", "wanted", "is", "turn it"];

export class Knobs {
  constructor(act, tryOut) {
    this.act = act;
    this.tryOut = tryOut;
    this.before = new Map(); // of each knob, what it was before this page turned it
    this.rows = new Map();
    this.body = el("tbody");
    const head = COLUMNS.map((name) => el("th", { scope: "col" }, name));
    this.table = el("div", { className: "scroll knobs" }, el("table", {}, el("thead", {}, el("tr", {}, head)), this.body));
  }

  // Each cell is made anew only where it has changed: whoever types in a field goes on typing.
  update(knobs, why) {
    fill(this.body, knobs.map((spec) => spec.name).join(), () => knobs.map((spec) => this.rowOf(spec).row));
    for (const spec of knobs) {
      const { cells, form } = this.rowOf(spec);
      const wanted = Object.entries(spec.wanted).map(([worker, value]) => (worker ? `${worker}: ${shown(value)}` : shown(value)));
      const lands = spec.fence === "run" ? "on all ranks at one step" : "on each at its next step";
      [takes(spec), lands, wanted.join(", ") || "–", present(spec)].forEach((text, i) => fill(cells[i], text, () => text));
      fill(form, JSON.stringify([spec.kind, spec.choices]), () => this.form(spec.name, spec));
      this.offerBack(form, spec.name);
      for (const one of form.querySelectorAll("input, select, button")) lock(one, why || (one.name === TRY && !spec.is_tried ? NOBODY_TRIES : ""));
      const input = form.querySelector("input, select");
      if (input !== document.activeElement && !input.dataset.draft && spec.values.length) input.value = String(spec.values[0][0]);
      this.rows.get(spec.name).spec = spec;
    }
  }

  rowOf(spec) {
    if (!this.rows.has(spec.name)) {
      const cells = COLUMNS.slice(1, 5).map((name) => el("td", { "data-name": name }));
      const form = el("td");
      const name = el("th", { scope: "row" }, spec.name, spec.doc ? el("div", { className: "faint doc" }, spec.doc) : null);
      this.rows.set(spec.name, { row: el("tr", {}, name, cells, form), cells, form, spec });
    }
    return this.rows.get(spec.name);
  }

  form(name, spec) {
    const label = `new value of ${name}`;
    const options = spec.kind === "bool" ? ["true", "false"] : spec.choices ?? [];
    const keep = (event) => { event.target.dataset.draft = "1"; };
    const input = options.length
      ? el("select", { "aria-label": label, onchange: keep }, options.map((one) => el("option", { value: one }, one)))
      : el("input", { "aria-label": label, oninput: keep, inputmode: spec.kind === "order" ? "text" : "decimal" });
    const submit = (event) => {
      event.preventDefault();
      this.turn(name, parsed(spec, input.value), input, false);
    };
    return el("form", { className: "row", onsubmit: submit }, input, el("button", { type: "submit" }, "set"), el("button", { type: "button", name: TRY, onclick: () => this.preview(name, parsed(spec, input.value)) }, "preview"), el("span", { className: "back" }));
  }

  // Beside the form, which stays as it is: whoever turns by keys is still in its field.
  offerBack(form, name) {
    const before = this.before.get(name);
    const turnBack = () => {
      form.querySelector("[type=submit]").focus(); // the button that is pressed is about to go
      this.turn(name, before, form.querySelector("input, select"), true);
    };
    fill(form.querySelector(".back"), JSON.stringify(before), () => (before === undefined ? [] : button(`back to ${shown(before)}`, "", turnBack)));
  }

  preview(name, value) {
    if (this.isNumber(name, value)) this.tryOut(name, value);
  }

  isNumber(name, value) {
    if (typeof value !== "number" || Number.isFinite(value)) return true;
    this.act.say(`${name}: need a number`, false);
    return false;
  }

  async turn(name, value, input, isBack) {
    if (!this.isNumber(name, value)) return;
    const { spec } = this.rows.get(name);
    const was = spec.values.length ? spec.values[0][0] : undefined;
    let answer = await this.act.request("knob.set", { knob: name, value, id: freshId() });
    if (!answer.ok && answer.text.includes('"sure": true')) {
      if (!confirm(`${answer.text.split(";")[0]}\n\nSet it all the same?`)) return this.act.say(`${name} was not set`);
      answer = await this.act.request("knob.set", { knob: name, value, id: freshId(), sure: true });
    }
    this.act.tell(answer);
    if (!answer.ok) return;
    delete input.dataset.draft;
    if (isBack) this.before.delete(name);
    else if (was !== undefined) this.before.set(name, was);
  }
}
