// The page: one socket, one store, some screens, the wheel and the kill switch on each of them.

import { el, span } from "./dom.js";
import { ask, Link, NOT_LET_IN } from "./link.js";
import { Known } from "./known.js";
import { SCREENS } from "./screens.js";

const STALE_S = 5;
const LEASE_S = 60;
const RENEW_MS = 20000;
const EVERY_MS = 500;

const at = (id) => document.getElementById(id);
const known = new Known();
const remembered = { get: () => localStorage.getItem("seat") ?? "", set: (name) => localStorage.setItem("seat", name) };

const act = {
  say(text, good = true) {
    at("said").textContent = text;
    at("said").className = good ? "" : "no";
  },
  async ask(verb, body) {
    const answer = await ask(verb, at("seat-name").value || "anonymous", body);
    act.say([answer.text, ...(answer.ids ?? [])].filter(Boolean).join(" "), answer.ok);
    return answer;
  },
  seat: () => `${at("seat-name").value}.${known.run?.seat ?? ""}`,
  hasWheel: () => Boolean(known.run?.status?.wheel) && known.run.status.wheel === act.seat(),
  isStale: () => !link.isOpen || known.ageS() === null || known.ageS() > STALE_S,
  isLocked: () => act.isStale() || !act.hasWheel(),
  look: () => link.look({ ...screen.wanted() }),
  remember: () => history.replaceState(null, "", `#${current.name.toLowerCase()}${screen.address ?? ""}`),
};

const screens = SCREENS.map(([name, Screen]) => ({ name, made: new Screen(known, act) }));
let current = screens[0];
let screen = current.made;
const link = new Link(
  (told) => { known.take(told); draw(); },
  (frame) => { known.takeFrame(frame); },
  (isOpen) => {
    if (isOpen) known.forget();
    draw();
  },
);

const tabs = screens.map(({ name }, number) =>
  el("button", { role: "tab", id: `tab-${number}`, "aria-controls": "screen", onclick: () => show(number) }, name),
);
document.querySelector("nav").append(...tabs);

function show(number, place = []) {
  current = screens[number];
  screen = current.made;
  screen.goTo?.(place);
  tabs.forEach((tab, other) => {
    tab.setAttribute("aria-selected", String(other === number));
    tab.tabIndex = other === number ? 0 : -1;
  });
  at("screen").replaceChildren(...screen.parts);
  at("screen").setAttribute("aria-labelledby", `tab-${number}`);
  act.remember();
  draw();
}

function freshness() {
  const place = at("fresh");
  const age = known.ageS();
  let text = `data as of ${span(age)} ago`;
  if (!link.isOpen && link.isShutOut) text = NOT_LET_IN;
  else if (!link.isOpen && link.refusal) text = `the room is full: ${link.refusal}`;
  else if (!link.isOpen) text = `disconnected from the room${age === null ? "" : `; data as of ${span(age)} ago`}: knobs are locked`;
  else if (age === null) text = known.run?.trouble ?? "waiting for the Weaver";
  else if (age > STALE_S) text = `no word of the Weaver for ${span(age)}: knobs are locked. ${known.run.trouble}`;
  if (place.textContent !== text) place.textContent = text;
  place.className = act.isStale() ? "old" : "";
}

function draw() {
  freshness();
  const status = known.run?.status;
  if (status) {
    at("run-name").textContent = status.run;
    document.title = `${status.run} – torchLoom`;
    const holder = status.wheel.split(".")[0];
    at("wheel-holder").textContent = act.hasWheel() ? "you drive" : status.wheel ? `${holder} drives` : "nobody drives";
    at("wheel-button").textContent = act.hasWheel() ? "leave the wheel" : "take the wheel";
    at("stop").textContent = status.stopped ? "actions are stopped" : "stop all actions";
  }
  screen.update();
  act.look();
}

async function turnWheel(force = false) {
  remembered.set(at("seat-name").value);
  if (act.hasWheel()) return act.ask("wheel.leave");
  const answer = await act.ask("wheel.take", { lease_s: LEASE_S, force });
  if (!answer.ok && !force && answer.text.endsWith("has the wheel") && confirm(`${answer.text}. Take it from them?`)) return turnWheel(true);
  return answer;
}

at("seat-name").value = remembered.get();
at("wheel").addEventListener("submit", (event) => { event.preventDefault(); turnWheel(); });
at("stop").addEventListener("click", () => act.ask("actions.stop"));
document.querySelector("nav").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
  show(next);
  tabs[next].focus();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key >= "1" && event.key <= String(screens.length)) show(Number(event.key) - 1);
  else if (event.key === "w") (at("seat-name").value ? at("wheel-button") : at("seat-name")).focus();
  else if (event.key === "!") act.ask("actions.stop");
  else if (event.key === "/") { show(1); at("find-worker").focus(); }
  else if (event.key === "?") act.say(`1 to ${screens.length}: screens; w: to the wheel; /: find a worker; !: stop all actions; arrows and Enter: in the heat map, among the screens and the marks of the timeline; Escape: out of a field`);
  else return;
  event.preventDefault();
});
window.addEventListener("resize", () => draw());
setInterval(draw, EVERY_MS);
setInterval(() => { if (act.hasWheel() && link.isOpen) ask("wheel.take", at("seat-name").value, { lease_s: LEASE_S }); }, RENEW_MS);

// Go where the address says: to a screen, and on it to what follows its name.
function followAddress() {
  const [name, ...place] = location.hash.slice(1).split("/");
  show(Math.max(0, screens.findIndex((one) => one.name.toLowerCase() === name)), place);
}

window.addEventListener("hashchange", followAddress);
followAddress();
