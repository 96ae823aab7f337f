// Elements are built from text: what workers and people write is never parsed as markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const keys = new WeakMap();

// Replace the children of a place only where the key has changed: focus and selection stay.
export function fill(place, key, make) {
  if (keys.get(place) === key) return;
  keys.set(place, key);
  place.replaceChildren(...[make()].flat().filter(Boolean));
}

// Disable a control while there is a reason, and show the reason as its title.
export function lock(control, why) {
  if (control.disabled !== Boolean(why)) control.disabled = Boolean(why);
  if (control.title !== why) control.title = why;
}

export function button(text, why, onclick, more = {}) {
  const made = el("button", { type: "button", onclick, ...more }, text);
  lock(made, why);
  return made;
}

export function section(title, options, ...children) {
  return el("section", { "aria-label": title, ...options }, el("h2", {}, title), children);
}

export function table(head, rows, options = {}) {
  return el("div", { className: "scroll cards", ...options }, el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), rows.tagName ? rows : el("tbody", {}, rows)));
}

export function swatch(colour) {
  const made = el("span", { className: "swatch" });
  made.style.background = colour;
  return made;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return String(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function span(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 10800) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function many(count, name) {
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

// Sweden writes times as ISO 8601 does; the zone is the browser's.
const LOCALE = "sv-SE";

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(LOCALE);
}

export function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString(LOCALE);
}

export function moment(seconds) {
  return `${day(seconds)} ${clock(seconds)}`;
}
