"""``torchloom gate``: compare benchmark results of nodes, and cordon those that are off."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.cli.capability import HERE, Connection, Duration, RequestError, propose
from torchloom_core.cli.options import AsJson, Several
from torchloom_core.cli.output import console, print_json
from torchloom_core.floor.errors import ConfigError

_SHOWN = 3
"""Findings of a node in the reason; the others are counted."""


def gate(
    results: Path,
    /,
    *,
    baseline: Path | None = None,
    percent: Annotated[float, Parameter(validator=Number(gt=0, lte=1e6))] = 5.0,
    floor: Several = (),
    cordon: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    lasts: Annotated[Duration | None, Parameter(name="--for")] = None,
    json: AsJson = False,
    connection: Connection = HERE,
) -> int:
    """Check the benchmark results of nodes, by SuperBench, and list what is off.

    Exit status 1 if a node is off. Without --cordon nothing is changed.

    Parameters
    ----------
    results
        File results-summary.jsonl of sb run: a line per node.
    baseline
        JSON file with the expected value of each metric. Default: the median of the nodes, of at
        least 3.
    percent
        Difference to the baseline that counts, percent; only worse values do.
    floor
        PATTERN=VALUE: a smaller difference of these metrics, in their unit, does not count.
    cordon
        Cordon the nodes that are off, with their numbers as the reason.
    lasts
        Duration of the cordons, such as 2d. Default: until torchloom uncordon.
    """
    from torchloom_core.capabilities.gate.superbench import (
        FEWEST_NODES,
        findings,
        read_baseline,
        read_results,
    )

    floors = dict(map(_floor, floor))
    expected = None if baseline is None else read_baseline(baseline)
    measured = read_results(results)
    if expected is None and len(measured.nodes) < FEWEST_NODES:
        raise ConfigError(
            f"{results}: need {FEWEST_NODES} nodes for a median, was {len(measured.nodes)}: give "
            "--baseline"
        )
    found = findings(measured, expected, share=percent / 100, floors=floors)
    off = {node: [*of] for node, of in groupby(found, lambda one: one.node)}
    if json:
        print_json([one._asdict() for one in found])
    else:
        for one in found:
            console().print(f"{one.node}: {one.text}", markup=False, soft_wrap=True)
        console().print(f"nodes that are off: {len(off)} of {len(measured.nodes)}", markup=False)
    if cordon:
        lasts_s = None if lasts is None else lasts.total_seconds()
        reasons = {node: _reason([one.text for one in of]) for node, of in off.items()}
        _cordon_all(reasons, lasts_s, connection)
    return int(bool(found))


def _floor(text: str) -> tuple[str, float]:
    pattern, _, value = text.rpartition("=")
    try:
        least = float(value)
    except ValueError:
        least = -1.0
    if not pattern or not 0 <= least < float("inf"):
        raise ConfigError(f"--floor: need PATTERN=VALUE such as kernel-launch/*=0.01, was {text!r}")
    return pattern, least


def _reason(texts: Sequence[str]) -> str:
    more = f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ("benchmark: " + "; ".join(texts[:_SHOWN]) + more)[:1000]


def _cordon_all(reasons: dict[str, str], lasts_s: float | None, connection: Connection) -> None:
    """Cordon each node; RequestError at the end if a node was refused."""
    refused = []
    for node, reason in reasons.items():
        try:
            propose(CordonNode(node=node, lasts_s=lasts_s, reason=reason), 0.0, connection)
        except RequestError as error:
            refused.append(f"{node}: {error}")
    if refused:
        raise RequestError("\n".join(refused))
