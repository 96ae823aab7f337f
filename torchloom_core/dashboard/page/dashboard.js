// The page: one socket, one store, some screens, control and the kill switch on each of them.

import { el, lock, span } from "./dom.js";
import { Following } from "./following.js";
import { ask, Link, NOT_LET_IN } from "./link.js";
import { Known } from "./known.js";
import { Said } from "./said.js";
import { SCREENS } from "./screens.js";

const STALE_S = 5;
const LEASE_S = 60;
const RENEW_MS = 20000;
const EVERY_MS = 500;
const MIDDLE_PX = 150;
const TAKE = "Take control";
const LEAVE = "Release control";
const STOPS = "No action is granted or carried on until actions are resumed. Works without control.";

const at = (id) => document.getElementById(id);
const known = new Known();
const remembered = { get: () => localStorage.getItem("session") ?? "", set: (name) => localStorage.setItem("session", name) };
const said = new Said(at("said"));
const following = new Following(known, (text, good) => said.say(text, good));

const act = {
  say: (text, good = true) => said.say(text, good),
  request: (verb, body) => ask(verb, at("session-name").value || "anonymous", body),
  // Say the answer, and later how that ended which it has led to.
  tell(answer, proposal = "") {
    const ids = answer.ok && proposal ? [proposal] : answer.ids ?? [];
    act.say(answer.ok && ids.length ? `${answer.text}: it is under way` : answer.text, answer.ok);
    following.follow(ids);
    return answer;
  },
  ask: async (verb, body = {}) => act.tell(await act.request(verb, body), body.proposal),
  // question: what a person is asked first, of what cannot be taken back by a click.
  propose(action, question = "") {
    if (!question || confirm(question)) return act.ask("propose", { action });
    act.say("nothing was asked for");
    return null;
  },
  session: () => `${at("session-name").value}.${known.run?.session ?? ""}`,
  hasControl: () => Boolean(known.run?.status?.controller) && known.run.status.controller === act.session(),
  isStale: () => !link.isOpen || known.ageS() === null || known.ageS() > STALE_S,
  // Why nothing can be asked for; empty while it can.
  lock() {
    if (known.run?.is_recorded) return "this run is on record: nothing can be asked of it";
    if (!link.isOpen) return "the dashboard is away: what is shown is old";
    if (act.isStale()) return "no word of the Weaver: what is shown is old";
    return act.hasControl() ? "" : "take control first";
  },
  look: () => link.look({ ...screen.wanted() }),
  remember: () => keepAddress("pushState"),
};

const screens = SCREENS.map(([name, Screen]) => ({ name, made: new Screen(known, act) }));
let current = screens[0];
let screen = current.made;
let controlBefore = "";
let leaves = false; // this page has released control itself
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

function show(number) {
  said.clear();
  turnTo(number);
  act.remember();
}

function turnTo(number) {
  current = screens[number];
  screen = current.made;
  tabs.forEach((tab, other) => {
    tab.setAttribute("aria-selected", String(other === number));
    tab.tabIndex = other === number ? 0 : -1;
  });
  tabs[0].parentElement.scrollLeft = tabs[number].offsetLeft - MIDDLE_PX; // where they do not all fit
  at("screen").replaceChildren(...screen.parts);
  at("screen").setAttribute("aria-labelledby", `tab-${number}`);
  draw();
}

// Each place is one to come back to; one that is not another is not put down twice.
function keepAddress(how) {
  const address = `#${current.name.toLowerCase()}${screen.address ?? ""}`;
  if (address !== location.hash) history[how](null, "", address);
}

function freshness() {
  const place = at("fresh");
  const age = known.ageS();
  let text = `data as of ${span(age)} ago`;
  if (!link.isOpen && link.isShutOut) text = NOT_LET_IN;
  else if (!link.isOpen && link.refusal) text = `the dashboard is full: ${link.refusal}`;
  else if (!link.isOpen) text = `disconnected from the dashboard${age === null ? "" : `; data as of ${span(age)} ago`}: knobs are locked`;
  else if (age === null) text = known.run?.trouble ?? "waiting for the Weaver";
  else if (age > STALE_S) text = `no word of the Weaver for ${span(age)}: knobs are locked. ${known.run.trouble}`;
  if (place.textContent !== text) place.textContent = text;
  const isOld = act.isStale() && !(known.run?.is_recorded && link.isOpen);
  place.className = isOld ? "old" : "";
  const heard = isOld ? "what is shown is old" : "what is shown is fresh";
  if (at("heard").textContent !== heard) at("heard").textContent = heard;
}

function draw() {
  freshness();
  const { run } = known;
  if (run?.name) {
    at("run-name").textContent = run.name;
    document.title = `${run.name} – torchLoom`;
  }
  drawControl(run?.status?.controller ?? "");
  drawStop();
  said.update(`${run?.status?.controller} ${run?.status?.stopped} ${link.isOpen}`);
  following.update();
  screen.update();
  act.look();
}

function drawControl(control) {
  at("control").hidden = Boolean(known.run?.is_recorded);
  const holder = control.split(".")[0];
  const isNamesake = holder === at("session-name").value;
  const drives = act.hasControl() ? "You are in control" : control ? `${isNamesake ? "another " : ""}${holder} is in control` : "No one is in control";
  if (at("control-holder").textContent !== drives) at("control-holder").textContent = drives;
  at("control-button").textContent = act.hasControl() ? LEAVE : TAKE;
  lock(at("session-name"), act.hasControl() ? "it is this name that has control" : ""); // another would lose it
  if (controlBefore === act.session() && control !== controlBefore && !leaves) {
    act.say(control ? `${isNamesake ? "another " : ""}${holder} has taken control from you` : "you do not have control any more", false);
  }
  controlBefore = control;
}

// Stopping takes nothing but the button; going on takes control, and a question.
function drawStop() {
  const isStopped = Boolean(known.run?.status?.stopped);
  const resumes = isStopped && !act.isStale();
  at("stopped").hidden = !isStopped;
  at("stop").textContent = resumes ? "resume actions" : "stop all actions";
  at("stop").className = resumes ? "" : "danger";
  lock(at("stop"), known.run?.is_recorded || resumes ? act.lock() : "");
  if (!at("stop").disabled) at("stop").title = resumes ? "Actions are granted again." : STOPS;
}

async function stopActions() {
  const answer = await act.request("actions.stop");
  act.say(answer.ok ? answer.text : `${answer.text}: "torchloom actions stop" in a shell does it without the dashboard`, answer.ok);
}

function turnStop() {
  if (at("stop").textContent !== "resume actions") return stopActions();
  return confirm("Actions are stopped. Have them granted again?") && act.ask("actions.resume");
}

// A click does what the label said: a name typed since it was drawn may be one that holds a lease.
async function turnControl() {
  remembered.set(at("session-name").value);
  leaves = at("control-button").textContent === LEAVE;
  if (leaves) return act.ask("control.release");
  at("session-name").blur(); // what is typed from now on are keys
  const answer = await act.ask("control.take", { lease_s: LEASE_S, force: false });
  if (answer.ok || !answer.text.endsWith("has control") || !confirm(`${answer.text}. Take it from them?`)) return answer;
  return act.ask("control.take", { lease_s: LEASE_S, force: true });
}

at("session-name").value = remembered.get();
at("control").addEventListener("submit", (event) => { event.preventDefault(); turnControl(); });
at("stop").addEventListener("click", turnStop);
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
  else if (event.key === "w") (at("session-name").value ? at("control-button") : at("session-name")).focus();
  else if (event.key === "!") stopActions();
  else if (event.key === "/") { show(1); at("find-worker").focus(); }
  else if (event.key === "?") act.say(`1 to ${screens.length}: screens; w: to control; /: find a worker; !: stop all actions; arrows and Enter: in the heat map, among the screens and the marks of the timeline; Escape: out of a field`);
  else return;
  event.preventDefault();
});
window.addEventListener("resize", () => draw());
setInterval(draw, EVERY_MS);
setInterval(() => { if (act.hasControl() && link.isOpen) ask("control.take", at("session-name").value, { lease_s: LEASE_S }); }, RENEW_MS);

// Go where the address says: to a screen, and on it to what follows its name.
function followAddress() {
  const [name, ...place] = location.hash.slice(1).split("/");
  const number = Math.max(0, screens.findIndex((one) => one.name.toLowerCase() === name));
  said.clear();
  screens[number].made.goTo?.(place);
  turnTo(number);
  keepAddress("replaceState");
}

window.addEventListener("hashchange", followAddress);
followAddress();
