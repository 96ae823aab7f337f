"""What any record of the trajectory says, in one line for a person."""

from collections.abc import Callable, Mapping
from typing import Any

from torchloom_core.kernel.actions.kinds import KINDS, summary_of
from torchloom_core.plain_text import plain_line
from torchloom_core.suggest import listed
from torchloom_core.wire.endings import in_words
from torchloom_core.wire.steering import name_of_replica

_LONGEST_FIELD = 80


def summarise(kind: str, body: Mapping[str, Any]) -> str:
    """Return one line on a message of this kind, given as plain dicts and lists.

    What it quotes may have been written by anyone, and to look like another line.
    """
    text_of = _TEXTS.get(kind)
    text = text_of(body) if text_of else ""
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
    what = f"{body['command']} {body['verb']} to {body['worker']} {body['status']}"
    return _with_detail(what + _at_step(body), body)


def _at_step(body: Mapping[str, Any]) -> str:
    return f" at step {body['step']}" if body.get("step", -1) >= 0 else ""


def _with_detail(text: str, body: Mapping[str, Any]) -> str:
    return f"{text}: {body['detail']}" if body.get("detail") else text


def _proposed(body: Mapping[str, Any]) -> str:
    proposal = body["proposal"]
    wish, reason = summary_of(proposal["action"]), proposal["reason"]
    text = f"{body['id']} {body['policy']} wants {wish}"
    if not wish.endswith(reason):  # an alert's reason is what it tells
        text += f": {reason}"
    gain = proposal.get("gain_gpu_s", 0.0)
    if not gain:
        return text
    chance, cost = proposal.get("confidence", 1.0), proposal.get("cost_gpu_s", 0.0)
    return f"{text}; gains {gain:,.1f} GPU-s with probability {chance:.2g}, costs {cost:,.1f}"


def _verdict(body: Mapping[str, Any]) -> str:
    word = "granted" if body["granted"] else "denied"
    wish = summary_of(body["action"])
    return f"{body['proposal']} {wish} {word} by {body['rule']}: {body['reason']}"


def _outcome(body: Mapping[str, Any]) -> str:
    kind = KINDS.get(str(body["action"].get("kind")))
    if kind and kind.skips_price_check:
        return f"{body['verdict']} {summary_of(body['action'])}"
    what = f"{body['verdict']} {summary_of(body['action'])} {body['result']}"
    return _with_detail(f"{what} in {body['took_s']:.1f} s", body)


def _failed(body: Mapping[str, Any]) -> str:
    name = body.get("policy") or body.get("predictor")
    return f"{name} is quarantined ({body['rule']}): {body['detail']}"


def _forecast(body: Mapping[str, Any]) -> str:
    worst = sorted(body["hazard"].items(), key=lambda item: -item[1])[:3]
    hazards = ", ".join(f"{worker} {hazard:.0%}" for worker, hazard in worst)
    return f"{body['predictor']} within {body['horizon_s']:g} s: {hazards or 'nothing'}"


def _request(body: Mapping[str, Any]) -> str:
    who, want = f"{body['id']} {body['by']}", body["want"]
    if body.get("session"):
        who = f"{body['id']} {body['session']} by {body['by']}"
    if want["want"] == "propose":
        return f"{who} wants {summary_of(want['action'])}"
    if want["want"] == "annotate":
        return f"{who} says: {want['text']}"
    if want["want"] == "forget_knob":
        return f"{who} wants no value of {want['knob']}{_on(want.get('worker'))}"
    return " ".join(filter(None, [f"{who}:", want["want"], want.get("proposal", "")]))


def _reply(body: Mapping[str, Any]) -> str:
    return f"{body['request']} {body['text']}"


def _backlog(body: Mapping[str, Any]) -> str:
    lags = body["taken_until_ns"] is not None
    return "the Weaver lags behind its reports" if lags else "all reports are taken in"


def _desired(body: Mapping[str, Any]) -> str:
    if body["value"] is None:
        return f"{body['knob']}{_on(body.get('worker'))} is wanted no more"
    waits = ", of an earlier job, waits" if body.get("waits") else ""
    return f"{body['knob']} = {body['value']}{_on(body.get('worker'))}{waits}"


def _pause_held(body: Mapping[str, Any]) -> str:
    if body["verdict"]:
        return f"the pause of {body['verdict']} is in force"
    return f"the pause of {body['over']} is over"


def _lighthouse(body: Mapping[str, Any]) -> str:
    count = len(body["members"])
    words = ("failed", "silent", "lost", "held", "aside")
    told = [
        f"{word}: {listed([name_of_replica(one) for one in body[word]])}"
        for word in words
        if body.get(word)
    ]
    return ", ".join([f"quorum {body['quorum_id']} of {count}", *told])


def _steer(body: Mapping[str, Any]) -> str:
    act = body["do"]
    whom = listed(act.get("replicas") or act.get("names") or ["nobody"])
    return f"{act['act']} {whom}: {body['reason']}"


def _judged(body: Mapping[str, Any]) -> str:
    said = {True: "hurt", False: "did no harm", None: "was not judged"}[body["hurt"]]
    return f"{body['verdict']} {said}: {body['text']}"


def _recording_gap(body: Mapping[str, Any]) -> str:
    return f"inputs {body['first']} to {body['last']} are not on record: {body['why']}"


_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "hello": _hello,
    "exit": _exit,
    "note": _note,
    "ack": _ack,
    "recording_gap": _recording_gap,
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
    "reply": _reply,
    "cordon_over": lambda body: f"node {body['node']} may be used again: its cordon is over",
    "knob_desired": _desired,
    "notice": lambda body: str(body["text"]),
    "issue": lambda body: f"{body['command']['id']} {body['command']['do']['verb']}",
    "pause_held": _pause_held,
    "recall": lambda body: str(body["command"]),
    "withheld": lambda body: f"{len(body['commands'])} commands were taken back unsent",
    "backlog": _backlog,
    "lighthouse": _lighthouse,
    "steer": _steer,
    "recovered": lambda body: f"epoch {body['epoch']}",
}

RECORD_KINDS = frozenset({*_TEXTS, "tick"})
"""Every kind of record there is; a tick has nothing to say."""
