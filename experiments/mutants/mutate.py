"""Run mutmut with its own operators and a few more, and write down what survives.

``run.py`` starts it in the folder that it has laid out: mutmut reads its config when it is
imported.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import libcst as cst
from mutmut.__main__ import cli
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code


def text_once(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """Change a text in one way, not in mutmut's three."""
    yield from list(mutators.operator_string(node))[:1]


def assign_none(node: cst.Assign | cst.AnnAssign) -> Iterable[cst.CSTNode]:
    """Keep None in a variable; of an attribute that would change the type for all mutants."""
    targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
    if all(isinstance(target, cst.Name) for target in targets):
        yield from mutators.operator_assignment(node)


def drop_statement(node: cst.Expr) -> Iterable[cst.Pass]:
    """Leave out a call, a yield or an await whose value nobody takes."""
    if not isinstance(node.value, cst.BaseString):
        yield cst.Pass()


def drop_value(node: cst.Return) -> Iterable[cst.Return]:
    """Return nothing."""
    if node.value is not None and not node.value.deep_equals(cst.Name("None")):
        yield node.with_changes(value=None)


def force_branch(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    """Take a branch always, or never."""
    for name in ("True", "False") if isinstance(node, cst.If) else ("False",):
        yield node.with_changes(test=cst.Name(name))


def drop_guard(node: cst.MatchCase) -> Iterable[cst.MatchCase]:
    """Take a case whatever its guard says."""
    if node.guard is not None:
        yield node.with_changes(guard=None)


def drop_filter(node: cst.CompFor) -> Iterable[cst.CompFor]:
    """Take all of what a comprehension takes some of."""
    if node.ifs:
        yield node.with_changes(ifs=())


def drop_side(node: cst.BooleanOperation) -> Iterable[cst.BaseExpression]:
    """Ask one half of a condition only."""
    yield node.left
    yield node.right


def swap_arguments(node: cst.Call) -> Iterable[cst.Call]:
    """Hand over the first two arguments in the other order."""
    if len(node.args) > 1 and not any(a.keyword or a.star for a in node.args[:2]):
        first, second, *rest = node.args
        swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
        yield node.with_changes(args=[*swapped, *rest])


def one_less(node: cst.Integer) -> Iterable[cst.BaseExpression]:
    """Count one less; mutmut counts one more."""
    if node.evaluated_value > 0:
        yield node.with_changes(value=str(node.evaluated_value - 1))


REPLACED = {
    mutators.operator_string: text_once,
    mutators.operator_assignment: assign_none,
}

OPERATORS = [
    *((kind, REPLACED.get(op, op)) for kind, op in mutators.mutation_operators),
    (cst.Expr, drop_statement),
    (cst.Return, drop_value),
    (cst.If, force_branch),
    (cst.While, force_branch),
    (cst.MatchCase, drop_guard),
    (cst.CompFor, drop_filter),
    (cst.BooleanOperation, drop_side),
    (cst.Call, swap_arguments),
    (cst.Integer, one_less),
]


def change(mutant: str) -> str:
    """Return a mutant as ``old`` → ``new``, each on one line."""
    lines = get_diff_for_mutant(mutant).splitlines()
    sides = (
        " ".join(line[1:].strip() for line in lines if line[0] == sign and line[:3] != 3 * sign)
        for sign in "-+"
    )
    return " → ".join(f"`{side}`" for side in sides)


def results() -> dict[str, Any]:
    """Return for each module how its mutants ended, and those that nobody noticed."""
    found = {}
    for path in sorted(Path("mutants").rglob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if not codes:
            continue
        statuses = {mutant: status_by_exit_code[code] for mutant, code in codes.items()}
        alive = [mutant for mutant, status in statuses.items() if status in ALIVE]
        module = str(path.relative_to("mutants").with_suffix(""))
        found[module] = {"ends": Counter(statuses.values()), "alive": [*map(change, alive)]}
    return found


ALIVE = ("survived", "no tests", "suspicious")

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file_mutation.mutation_operators = OPERATORS
    cli(["run", "--max-children", "1"], standalone_mode=False)
    Path("results.json").write_text(json.dumps(results(), indent=1, ensure_ascii=False))
