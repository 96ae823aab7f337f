"""The contract of capabilities detects a kind that breaks a rule."""

import pytest

from tests.testing.rules import broken_rules
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.dump.kind import DumpKind
from torchloom_core.testing import CapabilityContract
from torchloom_core.wire.operations import Checkpoint, Dump

DUMP = CollectDump(worker="g0-0")


class Moving(DumpKind):
    moves_group = True


class Talkative(DumpKind):
    def obstacle(self, action, run):
        return f"no\nworker {action.worker}"


class Careless(DumpKind):
    def obstacle(self, action, run):
        return run.fleet.hello[run.fleet.row_of[action.worker]].group and ""


class Undeclared(DumpKind):
    operations = ()


class Unused(DumpKind):
    operations = (Dump, Checkpoint)


class Nameless(DumpKind):
    def target(self, action):
        return ""


def broken(kind, **attributes):
    kinds = {} if kind is None else {"kind": lambda self: kind()}
    return broken_rules(CapabilityContract, **{"actions": (DUMP,), **kinds, **attributes})


def test_a_valid_capability_passes_all_tests():
    assert broken(None, arguments=("g0-0",)) == set()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Moving, "test_its_kind_fits_the_safety_limits"),
        (Nameless, "test_its_kind_fits_the_safety_limits"),
        (Talkative, "test_an_obstacle_is_one_line"),
        (Careless, "test_an_obstacle_is_one_line"),
        (Undeclared, "test_it_is_carried_out"),
        (Unused, "test_it_is_carried_out"),
    ],
)
def test_a_kind_that_breaks_a_rule_fails_the_test_of_that_rule(kind, rule):
    assert rule in broken(kind)


def test_an_impossible_action_and_another_command_line_fail_theirs():
    lost = (CollectDump(worker="lost"),)
    assert "test_an_obstacle_is_one_line" in broken(None, actions=lost)
    assert broken(None, arguments=("g1-0",)) == {"test_its_command_proposes_the_action"}
