"""``torchloom plan``: a pipeline's assignment, what follows on a loss, and the best layout."""

import os
import socket
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import AsJson
from torchloom_core.cli.output import console, print_json
from torchloom_core.floor.addresses import address
from torchloom_core.floor.errors import LighthouseError
from torchloom_core.wire.generations import MAX_LINE, Look, Outlook

if TYPE_CHECKING:
    from torchloom_core.assignments.price import Program
    from torchloom_core.wire.assignment import Assignment, Stage

RENDEZVOUS = "TORCHLOOM_RENDEZVOUS"
_ANSWER_S = 5.0
_MOST_PAIRS = 40
_ANSWERS = 6


def plan(
    *,
    rendezvous: str = "",
    lose: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    pairs: Annotated[bool, Parameter(negative="")] = False,
    workers: Annotated[int | None, Parameter(validator=Number(gte=1, lte=4096))] = None,
    json: AsJson = False,
) -> None:
    """Show a pipeline's assignment, what would follow on a loss, and the best layout.

    Times are estimated from the seconds that workers have measured for each layer.

    Parameters
    ----------
    rendezvous
        Address of the rendezvous. Default: TORCHLOOM_RENDEZVOUS.
    lose
        Worker whose loss is looked at, may be repeated for a loss of several at once. Default:
        each worker alone.
    pairs
        Look at the loss of each two workers at once as well.
    workers
        Show the layouts for so many workers instead.
    """
    from torchloom_core.assignments.price import bubble, program_of, step_s

    seen = _look(rendezvous or os.environ.get(RENDEZVOUS, ""))
    if seen.program is None or seen.assignment is None:
        raise LighthouseError(
            f"plan: no generation yet: the rendezvous waits for {seen.waits_for} more workers"
        )
    program = program_of(seen.program, seen.layer_s, seen.slowness, seen.fixed_s)
    present = msgspec.structs.replace(seen.assignment, standbys=seen.standbys)
    if unknown := sorted(set(lose) - {*present.workers, *present.standbys}):
        known = ", ".join([*present.workers, *present.standbys])
        raise LighthouseError(f"--lose {unknown[0]}: no such worker; there are {known}")
    if workers is not None:
        found = _layouts(workers, program, len(present.routes))
        print_json(found) if json else _print_layouts(workers, found, len(present.routes))
        return
    losses: list[tuple[str, ...]] = [lose] if lose else [(name,) for name in present.workers]
    if pairs:
        losses += list(combinations(present.workers, 2))[:_MOST_PAIRS]
    shown = {
        "generation": present.generation,
        "phase": seen.phase,
        "why": present.why,
        "committed": seen.committed,
        "step_ms": step_s(present, program) * 1e3,
        "fixed_ms": program.fixed_s * 1e3,
        "is_measured": program.is_measured,
        "bubble": bubble(present, program),
        "routes": [
            [
                {"worker": s.worker, "first": s.first, "last": s.end - 1, "ms": _ms(program, s)}
                for s in route
            ]
            for route in present.routes
        ],
        "experts": present.experts,
        "standbys": present.standbys,
        "slowness": seen.slowness,
        "single_copies": present.single_copies(),
        "single_experts": _single_experts(seen),
        "losses": [_loss(present, lost, program, most=_ANSWERS if lose else 1) for lost in losses],
    }
    print_json(shown) if json else _print(shown)


def _look(where: str) -> Outlook:
    """Ask a rendezvous for its state."""
    if not where:
        raise LighthouseError(f"plan: need --rendezvous host:port, or {RENDEZVOUS}")
    host, port = address(where, "--rendezvous")
    try:
        with socket.create_connection((host, port), _ANSWER_S) as opened:
            opened.sendall(msgspec.json.encode(Look()) + b"\n")
            line = opened.makefile("rb").readline(2 * MAX_LINE)
        return msgspec.json.decode(line, type=Outlook)
    except (OSError, msgspec.DecodeError) as error:
        raise LighthouseError(f"--rendezvous {where}: no answer: {error}") from None


def _single_experts(seen: Outlook) -> list[int]:
    """Return the experts that one worker alone holds, and no memory keeps."""
    kept = {mirror.expert for mirrors in seen.mirrors.values() for mirror in mirrors}
    holders = seen.assignment.experts if seen.assignment is not None else ()
    return [n for n, names in enumerate(holders) if len(names) == 1 and n not in kept]


def _ms(program: "Program", stage: "Stage") -> float:
    usual_s = sum((program.layer_s[layer] for layer in stage.layers), 0.0)
    return 1e3 * usual_s * program.slowness.get(stage.worker, 1.0)


def _loss(
    present: "Assignment", lost: tuple[str, ...], program: "Program", *, most: int
) -> dict[str, Any]:
    """Return what follows on the loss of workers, cheapest first."""
    from torchloom_core.assignments.answers import after_loss

    held = {name: frozenset(present.layers_of(name)) for name in present.workers}
    held |= dict.fromkeys(present.standbys, frozenset())
    left = {name: layers for name, layers in held.items() if name not in lost}
    answers = after_loss(present, left.keys(), left, program)
    return {
        "lost": list(lost),
        "answers": [
            {"why": answer.assignment.why, **answer.price._asdict()} for answer in answers[:most]
        ],
    }


def _layouts(workers: int, program: "Program", replicas: int) -> list[dict[str, Any]]:
    from torchloom_core.assignments.layouts import layouts

    return [one._asdict() for one in layouts(workers, program, replicas=replicas)]


def _print(shown: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    measured = "" if shown["is_measured"] else ", layers not measured yet: all counted alike"
    out.print(
        f"generation {shown['generation']} ({shown['why']}), {shown['phase']}, "
        f"after step {shown['committed']}: {shown['step_ms']:.0f} ms a step estimated, "
        f"{shown['bubble']:.0%} of it waiting{measured}"
    )
    table = Table("replica", "stage", "worker", "layers", "ms per micro-batch", box=None)
    for replica, route in enumerate(shown["routes"]):
        for number, stage in enumerate(route):
            layers = f"{stage['first']} to {stage['last']}"
            table.add_row(str(replica), str(number), stage["worker"], layers, f"{stage['ms']:.1f}")
    out.print(table)
    if shown["standbys"]:
        out.print(f"standbys: {', '.join(shown['standbys'])}")
    for name, slower in shown["slowness"].items():
        out.print(f"{name} is slow: its layers take {slower:.1f} times as long")
    for number, holders in enumerate(shown["experts"]):
        out.print(f"expert {number}: {', '.join(holders) or 'lost: left out by the router'}")
    if single := shown["single_copies"]:
        names = ", ".join(map(str, single))
        out.print(f"[bold]at risk[/bold]: one worker alone holds layers {names}")
    if shown["single_experts"]:
        names = ", ".join(map(str, shown["single_experts"]))
        out.print(f"[bold]at risk[/bold]: one worker alone has experts {names}")
    table = Table("if lost", "what follows", "ms a step", "stall s", "MB copied", box=None)
    table.add_column("GPU-s lost", justify="right")
    for loss in shown["losses"]:
        name = ", ".join(loss["lost"])
        if not loss["answers"]:
            table.add_row(name, "[bold]the program ends[/bold]: a layer would be lost")
        for answer in loss["answers"]:
            table.add_row(
                name,
                answer["why"],
                f"{answer['step_s'] * 1e3:.0f}",
                f"{answer['stall_s']:.2f}",
                f"{answer['copied_bytes'] / 1e6:.1f}",
                f"{answer['lost_gpu_s']:.1f}",
            )
    out.print(table)


def _print_layouts(workers: int, found: list[dict[str, Any]], replicas: int) -> None:
    from rich.table import Table

    from torchloom_core.assignments.layouts import Layout, why_best

    best, out = found[0], console()
    spare = f", {best['standbys']} stand by" if best["standbys"] else ""
    out.print(
        f"{workers} workers: {best['routes']} routes of {best['stages']} stages{spare}: "
        f"{best['step_s'] * 1e3:.0f} ms a step, {best['bubble']:.0%} of it waiting"
    )
    out.print(why_best([Layout(**one) for one in found], replicas=replicas))
    if best["copies"] == 1:
        out.print("[bold]at risk[/bold]: each layer has one holder")
    table = Table("routes", "stages", "standbys", "ms a step", "waiting", "slower by", box=None)
    for one in found[:12]:
        table.add_row(
            str(one["routes"]),
            str(one["stages"]),
            str(one["standbys"]),
            f"{one['step_s'] * 1e3:.0f}",
            f"{one['bubble']:.0%}",
            f"{one['step_s'] / best['step_s'] - 1:.0%}",
        )
    out.print(table)
