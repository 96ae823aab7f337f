// The page: one socket, one store, eight screens; run state, control and kill switch on each of them.

import { el, fill, lock, number, span } from "./dom.js";
import { drawGroups } from "./groups.js";
import { Link, NO_ACCESS, request } from "./link.js";
import { MessageLine, RequestOutcomes } from "./messages.js";
import { setNow } from "./record.js";
import { RunStore } from "./run_store.js";
import { FLEET, lacksStandby, SCREENS } from "./screens.js";
import { goodputOf } from "./time_account.js";

const STALE_S = 5;
const LEASE_S = 60;
const RENEW_MS = 20000;
const EVERY_MS = 500;
const TAKE = "Take control";
const TAKE_FIRST = "take control first";
const RELEASE = "Release control";
const STOPS = "No action is granted or continued until actions are resumed; training continues. Works without control.";
const LEVELS = { healthy: ["Healthy", "good"], finished: ["Finished", "faint"], starting: ["Starting", "warn"], paused: ["Paused", "warn"], degraded: ["Degraded", "warn"], unhealthy: ["Unhealthy", "bad"] };

const at = (id) => document.getElementById(id);
const store = new RunStore();
const remembered = { get: () => localStorage.getItem("session") ?? "", set: (name) => localStorage.setItem("session", name) };
const message = new MessageLine(at("message"));
const outcomes = new RequestOutcomes(store, (text, good) => message.show(text, good));

const act = {
  say: (text, good = true) => message.show(text, good),
  request: (verb, body) => request(verb, at("session-name").value || "anonymous", body),
  // Show the answer, and later how the request ended.
  show(answer, proposal = "") {
    const ids = answer.ok && proposal ? [proposal] : answer.ids ?? [];
    act.say(answer.ok && ids.length ? `${answer.text}: it is under way` : answer.text, answer.ok);
    outcomes.follow(ids);
    return answer;
  },
  send: async (verb, body = {}) => act.show(await act.request(verb, body), body.proposal),
  // question: asked first for an action that no click undoes.
  propose(action, question = "") {
    if (!question || confirm(question)) return act.send("propose", { action });
    act.say("Nothing was requested.");
    return null;
  },
  // A value far from those in use is refused until the person has confirmed it.
  async set(body) {
    const answer = await act.request("knob.set", body());
    if (answer.ok || !answer.text.includes('"sure": true')) return act.show(answer);
    if (!confirm(`${answer.text.split(";")[0]}\n\nSet it anyway?`)) return act.show({ ok: true, text: `${body().knob} was not set` }) && { ok: false };
    return act.show(await act.request("knob.set", { ...body(), sure: true }));
  },
  deny(proposal) {
    const reason = prompt(`Deny ${proposal}. Reason for the record (optional):`);
    if (reason !== null) act.request("deny", { proposal, reason }).then((answer) => act.show(answer));
  },
  session: () => `${at("session-name").value}.${store.run?.session ?? ""}`,
  hasControl: () => Boolean(store.run?.status?.controller) && store.run.status.controller === act.session(),
  isStale: () => !link.isOpen || store.ageS() === null || store.ageS() > STALE_S,
  // Why this page can never change the run; empty if it can.
  refusal: () => (store.run?.is_recorded ? "a recorded run takes no requests" : store.run?.refusal ?? ""),
  // Why no request is possible; empty while one is.
  lock() {
    if (act.refusal()) return act.refusal();
    if (!link.isOpen) return "disconnected from the dashboard: the data is old";
    if (act.isStale()) return "no answer from the Weaver: the data is old";
    return act.hasControl() ? "" : TAKE_FIRST;
  },
  select: () => link.select({ ...screen.wanted?.() }),
  remember: () => keepAddress("pushState"),
};

const screens = SCREENS.map(([name, Screen]) => ({ name, made: new Screen(store, act) }));
let current = screens[0];
let screen = current.made;
let controlBefore = "";
let releases = false; // this page has released control itself
const link = new Link(
  (update) => { store.take(update); draw(); },
  (frame) => { store.takeFrame(frame); },
  (isOpen) => {
    if (isOpen) store.forget();
    draw();
  },
);

const tabs = screens.map(({ name }, number) =>
  el("button", { role: "tab", id: `tab-${number}`, "aria-controls": "screen", onclick: () => open(number) }, name),
);
at("tabs").append(...tabs);

function open(number) {
  message.clear();
  show(number);
  act.remember();
}

function openRow(row) {
  open(FLEET);
  screens[FLEET].made.open(row);
}

function show(number) {
  current = screens[number];
  screen = current.made;
  tabs.forEach((tab, other) => {
    tab.setAttribute("aria-selected", String(other === number));
    tab.tabIndex = other === number ? 0 : -1;
  });
  at("screen").replaceChildren(...screen.parts);
  at("screen").setAttribute("aria-labelledby", `tab-${number}`);
  draw();
}

// Each place has an address; the same one is not added twice.
function keepAddress(how) {
  const address = `#${current.name.toLowerCase()}${screen.address ?? ""}`;
  if (address !== location.hash) history[how](null, "", address);
}

function drawFreshness() {
  const place = at("fresh");
  const age = store.ageS();
  let text = `data as of ${span(age)} ago`;
  if (!link.isOpen && link.hasNoAccess) text = NO_ACCESS;
  else if (!link.isOpen && link.refusal) text = `the dashboard is full: ${link.refusal}`;
  else if (!link.isOpen) text = `disconnected from the dashboard${age === null ? "" : `; data as of ${span(age)} ago`}: controls are locked`;
  else if (age === null) text = store.run?.trouble ?? "waiting for the Weaver";
  else if (age > STALE_S) text = `no answer from the Weaver for ${span(age)}: controls are locked. ${store.run.trouble}`;
  if (place.textContent !== text) place.textContent = text;
  const isOld = act.isStale() && !(store.run?.is_recorded && link.isOpen);
  place.className = isOld ? "old" : "";
  const state = isOld ? "the data is old" : "the data is fresh";
  if (at("fresh-state").textContent !== state) at("fresh-state").textContent = state;
  return isOld;
}

function drawHealth(isOld) {
  const { run } = store;
  const place = at("health");
  const { level, reasons } = run?.health ?? { level: "", reasons: [] };
  const [word, tone] = isOld || !LEVELS[level] ? ["Unknown", "faint"] : LEVELS[level];
  fill(place, word, () => word);
  place.className = `pill ${tone}`;
  place.title = isOld ? "the data is old" : reasons.map(([, text]) => text).join("; ");
}

function drawVitals() {
  const { run } = store;
  if (!run) return;
  const goodput = goodputOf(run.time_account);
  const waiting = run.status?.waiting?.length ?? 0;
  const hasRoom = waiting ? "" : "more"; // on a phone only what waits for a person
  const { training, standby } = run.counts;
  const vitals = [
    ["Training", `${training} of ${run.workers - run.counts.left - run.counts.ended - standby} ranks`, "more"],
    ["Standby", String(standby), "more"],
    ["Step", run.step < 0 ? "none yet" : String(run.step)],
    ["Steps/s", number(run.steps_per_s === null ? null : Number(run.steps_per_s.toPrecision(3)))],
    ["Loss (median)", number(run.loss === null ? null : Number(run.loss.toPrecision(3)))],
    ["Goodput", goodput === null ? "–" : `${goodput.toFixed(1)} %`],
    ["Waiting in steps", run.waiting == null ? "–" : `${(100 * run.waiting).toFixed(0)} %`, "more"], // goodput leaves it out
    ["Run age", run.started_s ? span(run.now_s - run.started_s) : "–", "more"],
    ["Pending approvals", String(waiting), hasRoom],
  ];
  const place = at("vitals");
  fill(place, vitals.length, () => vitals.map(([name, , more]) => el("div", { className: more ?? "" }, el("dt", {}, name), el("dd"))));
  vitals.forEach(([, value], n) => fill(place.children[n].lastChild, value, () => value));
  place.children[1].lastChild.className = lacksStandby(run) ? "warn" : "";
  place.lastChild.className = hasRoom;
  place.lastChild.lastChild.className = waiting ? "warn" : "";
}

// Why buttons are disabled, in sight: a phone shows no titles.
function drawLocked() {
  const why = store.run ? act.lock() : "";
  const text = !why ? "" : why === TAKE_FIRST ? "Take control to use the buttons that change the run." : act.refusal() ? `Read-only: ${why}.` : `Buttons are locked: ${why}.`;
  fill(at("locked"), text, () => text);
}

function draw() {
  setNow(store.run?.status ?? {});
  drawLocked();
  drawHealth(drawFreshness());
  const { run } = store;
  if (run?.name) {
    at("run-name").textContent = run.name;
    document.title = `${run.name} – torchLoom`;
  }
  drawVitals();
  drawGroups(at("groups"), store, openRow);
  drawControl(run?.status?.controller ?? "");
  drawStop();
  message.update(`${run?.status?.controller} ${run?.status?.stopped} ${link.isOpen}`);
  outcomes.update();
  screen.update();
  act.select();
}

function drawControl(control) {
  at("control").hidden = Boolean(store.run?.is_recorded);
  const holder = control.split(".")[0];
  const isNamesake = holder === at("session-name").value;
  const text = act.hasControl() ? "You are in control" : control ? `${isNamesake ? "another " : ""}${holder} is in control` : act.refusal() ? "Control is free" : "Read-only: control is free";
  if (at("control-holder").textContent !== text) at("control-holder").textContent = text;
  at("control-button").textContent = act.hasControl() ? RELEASE : TAKE;
  for (const part of at("control").querySelectorAll("label, button")) part.hidden = Boolean(act.refusal());
  const signedOn = store.run?.signed_on;
  if (signedOn) at("session-name").value = signedOn;
  lock(at("session-name"), signedOn ? "the proxy has signed you on by this name" : act.hasControl() ? "this name has control" : ""); // another name would lose it
  if (controlBefore === act.session() && control !== controlBefore && !releases) {
    act.say(control ? `${isNamesake ? "another " : ""}${holder} has taken control from you` : "you do not have control any more", false);
  }
  controlBefore = control;
}

// Stopping takes one click from anyone; resuming takes control and a confirmation.
function drawStop() {
  const isStopped = Boolean(store.run?.status?.stopped);
  const resumes = isStopped && !act.isStale();
  const button = at("stop");
  fill(button, String(resumes), () => (resumes ? ["Resume actions", el("small", {}, "actions are stopped")] : ["Stop all actions", el("small", {}, "training continues")]));
  button.className = resumes ? "" : "danger";
  button.dataset.resumes = resumes ? "1" : "";
  lock(button, act.refusal() || (resumes ? act.lock() : ""));
  if (!button.disabled) button.title = resumes ? "Actions are granted again." : STOPS;
}

async function stopActions() {
  if (act.refusal()) return act.say(act.refusal(), false);
  const answer = await act.request("actions.stop");
  act.say(answer.ok ? answer.text : `${answer.text}: "torchloom actions stop" in a shell does it without the dashboard`, answer.ok);
}

function pressStop() {
  if (!at("stop").dataset.resumes) return stopActions();
  return confirm("Actions are stopped. Resume them?") && act.send("actions.resume");
}

// A click does what the label said: a name typed since then may be one that holds a lease.
async function pressControl() {
  remembered.set(at("session-name").value);
  releases = at("control-button").textContent === RELEASE;
  if (releases) return act.send("control.release");
  at("session-name").blur(); // from now on keys are shortcuts
  const answer = await act.send("control.take", { lease_s: LEASE_S, force: false });
  if (answer.ok || !answer.text.endsWith("has control") || !confirm(`${answer.text}. Take it from them?`)) return answer;
  return act.send("control.take", { lease_s: LEASE_S, force: true });
}

at("session-name").value = remembered.get();
at("control").addEventListener("submit", (event) => { event.preventDefault(); pressControl(); });
at("stop").addEventListener("click", pressStop);
at("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
  open(next);
  tabs[next].focus();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key >= "1" && event.key <= String(screens.length)) open(Number(event.key) - 1);
  else if (event.key === "w") (at("session-name").value ? at("control-button") : at("session-name")).focus();
  else if (event.key === "!") stopActions();
  else if (event.key === "/") { open(FLEET); at("find-worker").focus(); }
  else if (event.key === "?") act.say(`1 to ${screens.length}: screens; w: control; /: find a worker; !: stop all actions; arrows and Enter: in the heatmap, among the screens and the marks of the timeline; Escape: leave a field`);
  else return;
  event.preventDefault();
});
window.addEventListener("resize", () => draw());
setInterval(draw, EVERY_MS);
setInterval(() => { if (act.hasControl() && link.isOpen) request("control.take", at("session-name").value, { lease_s: LEASE_S }); }, RENEW_MS);

// Go where the address points: to a screen, and to the place on it.
function followAddress() {
  const [name, ...place] = location.hash.slice(1).split("/");
  const number = Math.max(0, screens.findIndex((one) => one.name.toLowerCase() === name));
  message.clear();
  screens[number].made.goTo?.(place);
  show(number);
  keepAddress("replaceState");
}

window.addEventListener("hashchange", followAddress);
followAddress();
