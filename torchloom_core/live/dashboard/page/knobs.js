// The table of knobs: range, desired and present values, and a form to set each of them, or back.

import { button, el, fill, lock, table } from "./dom.js";
import { freshId } from "./link.js";

export function rangeOf(spec) {
  const unit = spec.unit ? ` ${spec.unit}` : "";
  if (spec.kind === "choice") return spec.choices.join(" | ");
  if (spec.kind === "bool") return "true | false";
  const low = spec.low ?? null, high = spec.high ?? null;
  const kind = spec.kind === "int" ? "integer" : spec.kind === "float" ? "number" : spec.kind;
  if (low === null && high === null) return kind + unit;
  if (high === null) return `${kind}, ${low} or more${unit}`;
  if (low === null) return `${kind}, ${high} or less${unit}`;
  return `${kind}, ${low} to ${high}${unit}`;
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
  const waiting = spec.standbys.filter(([value]) => !one || value !== spec.values[0][0]);
  return (run || "–") + (waiting.length ? `; standby: ${counted(waiting)}, takes the run's value when it joins` : "");
}

function parsed(spec, text) {
  if (spec.kind === "bool") return text === "true";
  if (spec.kind === "int" || spec.kind === "float") return text.trim() === "" ? NaN : Number(text);
  return text;
}

const PREVIEW = "preview";
const NO_PREVIEW = "no standby can preview this knob: the script's Preview has to offer it";
const ENDS_RUN = /\b(ends|stops)\b/; // a knob whose description says so
const keyOf = (spec) => (spec.role ? `${spec.role}/${spec.name}` : spec.name); // two roles may have a knob of one name
const COLUMNS = ["Knob", "Range", "Applied", "Desired", "Current", "Set"];

export class Knobs {
  constructor(act, preview) {
    this.act = act;
    this.preview = preview;
    this.before = new Map(); // of each knob, its value before this page set it
    this.rows = new Map();
    this.body = el("tbody");
    this.table = table(COLUMNS, this.body);
    this.table.classList.add("knobs");
  }

  // A cell is rebuilt only where it has changed: typing in a field goes on.
  update(knobs, why) {
    fill(this.body, knobs.map(keyOf).join(), () => knobs.map((spec) => this.rowOf(spec).row));
    for (const spec of knobs) {
      const { cells } = this.rowOf(spec);
      const desired = Object.entries(spec.desired).map(([worker, value]) => (worker ? `${worker}: ${shown(value)}` : shown(value)));
      const applied = spec.fence === "run" ? "on all ranks at one step" : "by each rank at its next step";
      [rangeOf(spec), applied, desired.join(", ") || "unchanged", present(spec)].forEach((text, i) => fill(cells[i], text, () => text));
      this.updateForm(spec, why);
    }
  }

  updateForm(spec, why) {
    const { form } = this.rowOf(spec);
    fill(form, JSON.stringify([spec.kind, spec.choices]), () => this.form(keyOf(spec), spec));
    this.offerBack(form, keyOf(spec));
    const input = form.querySelector("input, select");
    for (const one of form.querySelectorAll("input, select, button")) {
      const empty = one.tagName === "BUTTON" && !one.dataset.back && input.value === "" ? "enter a new value first" : "";
      lock(one, why || (one.name === PREVIEW && !spec.has_preview ? NO_PREVIEW : empty));
    }
    this.rows.get(keyOf(spec)).spec = spec;
  }

  rowOf(spec) {
    if (!this.rows.has(keyOf(spec))) {
      const cells = COLUMNS.slice(1, 5).map((name) => el("td", { "data-name": name }));
      const form = el("td");
      const name = el("th", { scope: "row" }, spec.role ? `${spec.name} (${spec.role})` : spec.name, spec.doc ? el("div", { className: "doc" }, spec.doc) : null);
      this.rows.set(keyOf(spec), { row: el("tr", {}, name, cells, form), cells, form, spec });
    }
    return this.rows.get(keyOf(spec));
  }

  form(name, spec) {
    const label = `new value of ${name}`;
    const options = spec.kind === "bool" ? ["true", "false"] : spec.choices ?? [];
    const unlock = () => { for (const one of form.querySelectorAll("button")) if (one.title.startsWith("enter")) lock(one, ""); };
    const input = options.length
      ? el("select", { "aria-label": label, onchange: unlock }, el("option", { value: "" }, "new value"), options.map((one) => el("option", { value: one }, one)))
      : el("input", { "aria-label": label, placeholder: "new value", oninput: unlock, autocomplete: "off", inputmode: spec.kind === "order" ? "text" : "decimal" });
    const submit = (event) => {
      event.preventDefault();
      this.set(name, parsed(spec, input.value), input);
    };
    const ends = ENDS_RUN.test(spec.doc ?? "");
    const form = el("form", { className: "row", onsubmit: submit }, input, el("button", { type: "submit", className: ends ? "danger" : "" }, "Set"), this.preview && el("button", { type: "button", name: PREVIEW, onclick: () => this.tryOut(name, parsed(spec, input.value)) }, "Preview"), el("span", { className: "back" }));
    return form;
  }

  // Outside the fields, so that focus stays in the field.
  offerBack(form, name) {
    const before = this.before.get(name);
    const setBack = () => {
      form.querySelector("input, select").focus(); // the button that is pressed is about to go
      this.set(name, before, form.querySelector("input, select"), true);
    };
    fill(form.querySelector(".back"), JSON.stringify(before), () => (before === undefined ? [] : button(`Undo: back to ${shown(before)}`, "", setBack, { "data-back": "1" })));
  }

  tryOut(name, value) {
    if (this.isNumber(name, value)) this.preview(this.rows.get(name).spec.name, value);
  }

  isNumber(name, value) {
    if (typeof value !== "number" || Number.isFinite(value)) return true;
    this.act.say(`${name}: need a number`, false);
    return false;
  }

  async set(name, value, input, isBack = false) {
    if (!this.isNumber(name, value)) return;
    const { spec } = this.rows.get(name);
    const doc = spec.doc ?? "";
    if (!isBack && ENDS_RUN.test(doc) && !confirm(`Set ${name} = ${shown(value)}? ${name}: ${doc}.`)) return this.act.say(`${name} was not set`);
    const was = spec.values.length ? spec.values[0][0] : undefined;
    const answer = await this.act.set(() => ({ knob: spec.name, value, id: freshId(), ...(spec.role ? { role: spec.role } : {}) }));
    if (!answer.ok) return;
    input.value = "";
    if (isBack) this.before.delete(name);
    else if (was !== undefined) this.before.set(name, was);
  }
}
