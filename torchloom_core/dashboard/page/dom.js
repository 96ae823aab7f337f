// Elements are made of text alone: what workers and people write is never taken for markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const keys = new WeakMap();

// Replace what is in a place only where it has changed: focus and selection stay.
export function fill(place, key, make) {
  if (keys.get(place) === key) return;
  keys.set(place, key);
  place.replaceChildren(...[make()].flat());
}

// Let nobody press it as long as there is a reason why not, and say which.
export function lock(control, why) {
  if (control.disabled !== Boolean(why)) control.disabled = Boolean(why);
  if (control.title !== why) control.title = why;
}

export function button(text, why, onclick) {
  const made = el("button", { type: "button", onclick }, text);
  lock(made, why);
  return made;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 10800) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function many(count, name) {
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

// Sweden writes times as the ISO does, and they are the browser's own.
const PLACE = "sv-SE";

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(PLACE);
}

export function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString(PLACE);
}

export function moment(seconds) {
  return `${day(seconds)} ${clock(seconds)}`;
}
