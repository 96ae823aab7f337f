"""Every run of a few ranks under the fence, searched further than the tests have time for.

    python experiments/fence_model/run.py            # three to twelve minutes of one core
    python experiments/fence_model/run.py --quick    # a minute: one step less in each

The exit status is 1 if something that must hold did not; the shortest way to it is printed.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.threadlet.fence_model import Budget, Model, Violation

HERE = Path(__file__).parent
_SETTLING = 500


class Search(NamedTuple):
    """What may happen, to how many ranks, under which rules."""

    name: str
    ranks: int
    budget: Budget
    rules: dict[str, Any]


SEARCHES = (
    Search("2 ranks", 2, Budget(4, failures=2, evictions=2, deaths=1), {}),
    Search("2 ranks, withdrawals", 2, Budget(4, failures=1, evictions=1, withdrawals=1), {}),
    Search("2 ranks and a joiner", 2, Budget(3, failures=1, evictions=1, deaths=1, births=1), {}),
    Search(
        "2 ranks and a joiner, no init_sync",
        2,
        Budget(4, failures=1, evictions=1, deaths=1, births=1),
        {"init_sync": False, "changes": (1,)},
    ),
    Search("3 ranks", 3, Budget(3, failures=1, evictions=1, deaths=1), {"changes": (1, 2)}),
    Search(
        "3 ranks and a joiner", 3, Budget(3, failures=1, evictions=2, births=1), {"changes": (1,)}
    ),
    Search(
        "asynchronous: 2 ranks and a joiner",
        2,
        Budget(3, failures=1, evictions=1, births=1),
        {"asynchronous": True},
    ),
    Search(
        "asynchronous: 3 ranks, a set that fails",
        3,
        Budget(3, failures=1, evictions=1, raises=1),
        {"asynchronous": True, "changes": (1,)},
    ),
    Search("2 ranks, sets that fail", 2, Budget(5, failures=1, evictions=3, raises=2), {}),
    Search(
        "3 ranks, a set that fails, deaths",
        3,
        Budget(4, failures=1, evictions=1, deaths=1, raises=1),
        {"changes": (1,)},
    ),
    Search(
        "3 ranks, the lighthouse's ids begin anew",
        3,
        Budget(4, failures=1, evictions=2, restarts=1),
        {"changes": (1,)},
    ),
)


def search(asked: Search) -> dict[str, Any]:
    """Return how many states there are, and what must not happen if it does."""
    began_s = time.perf_counter()
    row: dict[str, Any] = {"search": asked.name, "ranks": asked.ranks, **asked.budget._asdict()}
    try:
        states = Model(**asked.rules).explore(asked.ranks, asked.budget, settling=_SETTLING)
        row |= {"states": states, "violation": None}
    except Violation as violation:
        row |= {"states": None, "violation": str(violation)}
    return row | {"seconds": round(time.perf_counter() - began_s, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round less in each search")
    options = parser.parse_args()
    console = Console(width=110)
    table = Table(title="States seen")
    for column in ("search", "budget", "states", "seconds", "violations"):
        table.add_column(column, justify="left" if column in ("search", "budget") else "right")
    rows = []
    for asked in SEARCHES:
        if options.quick:
            asked = asked._replace(budget=asked.budget.less("rounds"))
        row = search(asked)
        rows.append(row)
        console.print(f"{asked.name}: {row['states'] or row['violation']}")
        spent = ", ".join(f"{n} {what}" for what, n in asked.budget._asdict().items() if n)
        found = "none" if row["violation"] is None else "found"
        table.add_row(asked.name, spent, f"{row['states'] or 0:,}", f"{row['seconds']}", found)
    console.print(table)
    if not options.quick:
        (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return any(row["violation"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
