"""One line of text for each kind of record in a trajectory."""

from collections.abc import Callable, Mapping
from typing import Any

from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.suggest import listed
from torchloom_core.live.kernel.actions.kinds import find_kind, summary_of
from torchloom_core.wire.endings import in_words
from torchloom_core.wire.steering import name_of_replica

_LONGEST_FIELD = 80


def summarise(kind: str, body: Mapping[str, Any]) -> str:
    """Return one printable line on a message of this kind, given as plain dicts and lists."""
    describe = _TEXTS.get(kind)
    text = describe(body) if describe else ""
    return plain_line(text, len(text))


def _on(worker: str | None) -> str:
    return f" on {worker}" if worker else " on all"


def _hello(body: Mapping[str, Any]) -> str:
    return f"{body['worker']} of group {body['group']} on node {body['node']}: {body['state']}"


def _exit(body: Mapping[str, Any]) -> str:
    return in_words(
        body["status"],
        expected=body["expected"],
        step=body.get("step", -1),
        error=body.get("error", ""),
    )


def _note(body: Mapping[str, Any]) -> str:
    fields = " ".join(f"{name}={_short(value)}" for name, value in body.get("fields", {}).items())
    return f"{body['kind']} at step {body.get('step', -1)} {fields}".rstrip()


def _short(value: object) -> str:
    """Return a value in a few characters of one line: stacks and dumps are long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_FIELD else f"{text[:_LONGEST_FIELD]}..."


def _ack(body: Mapping[str, Any]) -> str:
    return _with_detail(f"{body['command']} {body['status']}{_at_step(body)}", body)


def _command_status(body: Mapping[str, Any]) -> str:
    text = f"{body['command']} {body['verb']} to {body['worker']} {body['status']}"
    return _with_detail(text + _at_step(body), body)


def _at_step(body: Mapping[str, Any]) -> str:
    return f" at step {body['step']}" if body.get("step", -1) >= 0 else ""


def _with_detail(text: str, body: Mapping[str, Any]) -> str:
    return f"{text}: {body['detail']}" if body.get("detail") else text


def _proposed(body: Mapping[str, Any]) -> str:
    proposal = body["proposal"]
    action, reason = summary_of(proposal["action"]), proposal["reason"]
    text = f"{body['id']} {body['policy']} proposes {action}"
    if not action.endswith(reason):  # an alert's text is its reason
        text += f": {reason}"
    gain = proposal.get("gain_gpu_s", 0.0)
    if not gain:
        return text
    chance, cost = proposal.get("confidence", 1.0), proposal.get("cost_gpu_s", 0.0)
    return f"{text}; gains {gain:,.1f} GPU-s with probability {chance:.2g}, costs {cost:,.1f}"


def _verdict(body: Mapping[str, Any]) -> str:
    decision = "granted" if body["granted"] else "denied"
    action = summary_of(body["action"])
    return f"{body['proposal']} {action} {decision} by {body['rule']}: {body['reason']}"


def _outcome(body: Mapping[str, Any]) -> str:
    kind = find_kind(str(body["action"].get("kind")))
    if kind and kind.skips_price_check:
        return f"{body['verdict']} {summary_of(body['action'])}"
    text = f"{body['verdict']} {summary_of(body['action'])} {body['result']}"
    return _with_detail(f"{text} in {body['took_s']:.1f} s", body)


def _failed(body: Mapping[str, Any]) -> str:
    name = body.get("policy") or body.get("predictor")
    return f"{name} is quarantined ({body['rule']}): {body['detail']}"


def _forecast(body: Mapping[str, Any]) -> str:
    worst = sorted(body["hazard"].items(), key=lambda item: -item[1])[:3]
    hazards = ", ".join(f"{worker} {hazard:.0%}" for worker, hazard in worst)
    return f"{body['predictor']} within {body['horizon_s']:g} s: {hazards or 'nothing'}"


def _request(body: Mapping[str, Any]) -> str:
    sender, want = f"{body['id']} {body['by']}", body["want"]
    if body.get("session"):
        sender = f"{body['id']} {body['session']} by {body['by']}"
    if want["want"] == "propose":
        return f"{sender} requests {summary_of(want['action'])}"
    if want["want"] == "annotate":
        return f"{sender} annotates: {want['text']}"
    if want["want"] == "forget_knob":
        return f"{sender} clears the desired value of {want['knob']}{_on(want.get('worker'))}"
    return " ".join(filter(None, [f"{sender}:", want["want"], want.get("proposal", "")]))


def _backlog(body: Mapping[str, Any]) -> str:
    lags = body["taken_until_ns"] is not None
    return "the Weaver lags behind the workers' reports" if lags else "all reports are handled"


def _desired(body: Mapping[str, Any]) -> str:
    if body["value"] is None:
        return f"{body['knob']}{_on(body.get('worker'))} has no desired value any more"
    waits = ", from an earlier job, waits for confirmation" if body.get("waits") else ""
    return f"{body['knob']} = {body['value']}{_on(body.get('worker'))}{waits}"


def _pause_held(body: Mapping[str, Any]) -> str:
    if body["verdict"]:
        return f"the pause of {body['verdict']} is in force"
    return f"the pause of {body['over']} has ended"


def _lighthouse(body: Mapping[str, Any]) -> str:
    count = len(body["members"])
    states = ("failed", "silent", "lost", "held", "aside")
    groups = [
        f"{state}: {listed([name_of_replica(one) for one in body[state]])}"
        for state in states
        if body.get(state)
    ]
    return ", ".join([f"quorum {body['quorum_id']} of {count}", *groups])


def _steer(body: Mapping[str, Any]) -> str:
    act = body["do"]
    groups = listed(act.get("replicas") or act.get("names") or ["no group"])
    return f"{act['act']} {groups}: {body['reason']}"


def _judged(body: Mapping[str, Any]) -> str:
    result = {True: "did harm", False: "did no harm", None: "not judged"}[body["hurt"]]
    return f"{body['verdict']} {result}: {body['text']}"


def _delivery_status(body: Mapping[str, Any]) -> str:
    text = f"{body['effector']}: {body['delivery']} {body['result'].replace('_', ' ')}"
    return _with_detail(text, body)


def _program(body: Mapping[str, Any]) -> str:
    outlook = body.get("outlook")
    if outlook is None:
        return f"{body['role']}: the rendezvous cannot be reached"
    generation = (outlook.get("assignment") or {}).get("generation")
    which = f"generation {generation}, " if generation else ""
    return f"{body['role']}: {which}{outlook['phase']}, step {outlook.get('committed', -1)}"


def _suspension(body: Mapping[str, Any]) -> str:
    what = f"role {body['role']}" if body["role"] else "the run"
    if body["state"] == "over":
        text = f"{what} is no longer suspended"
    else:
        after = f" after step {body['step']}" if body.get("step", -1) >= 0 else ""
        resuming = ", and is being resumed" if body["state"] == "resuming" else ""
        text = f"{what} is suspended ({body['depth']}){after}{resuming}"
    return f"{text}: {why}" if (why := body.get("why")) else text


_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "hello": _hello,
    "exit": _exit,
    "note": _note,
    "ack": _ack,
    "noticed": lambda body: str(body["text"]),
    "recording_gap": lambda body: (
        f"inputs {body['first']} to {body['last']} were not recorded: {body['why']}"
    ),
    "command_status": _command_status,
    "proposed": _proposed,
    "verdict": _verdict,
    "outcome": _outcome,
    "judged": _judged,
    "policy_failed": _failed,
    "predictor_failed": _failed,
    "input_failed": lambda body: f"the Weaver failed at this input: {body['error']}",
    "forecast": _forecast,
    "forecast_wanted": lambda body: f"{body['id']} from {body['predictor']}",
    "node_fault": lambda body: f"{body['id']} {body['kind']} of node {body['node']}",
    "request": _request,
    "reply": lambda body: f"{body['request']} {body['text']}",
    "cordon_over": lambda body: f"node {body['node']} is uncordoned: its cordon has expired",
    "knob_desired": _desired,
    "notice": lambda body: str(body["text"]),
    "issue": lambda body: f"{body['command']['id']} {body['command']['do']['verb']}",
    "pause_held": _pause_held,
    "suspension": _suspension,
    "withdrawal": lambda body: str(body["command"]),
    "withheld": lambda body: f"{len(body['commands'])} commands were withdrawn before sending",
    "backlog": _backlog,
    "delivery_status": _delivery_status,
    "lighthouse": _lighthouse,
    "steer": _steer,
    "program_seen": _program,
    "change_wanted": lambda body: f"{body['change']['id']} to the rendezvous of {body['role']}",
    "recovered": lambda body: f"epoch {body['epoch']}",
}

RECORD_KINDS = frozenset({*_TEXTS, "tick"})
"""All kinds of records; a tick has no text."""
