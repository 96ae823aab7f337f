"""The tests for all capabilities; a capability's own tests subclass them."""

import ast
import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar
from unittest import mock

import msgspec

from torchloom_core.lab.simulate.answer import FleetAnswer, answer_of
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.scenario import JobSpec, Tier
from torchloom_core.live.kernel.actions.kind import ActionKind
from torchloom_core.live.kernel.actions.kinds import summary_of, unguarded_kind
from torchloom_core.testing.small_run import SmallRun, hellos
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.capabilities import action_type, find_part, from_json, installed
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import Outcome, Output, Verdict
from torchloom_core.wire.events import Input
from torchloom_core.wire.messages import Telemetry
from torchloom_core.wire.operations import Operation
from torchloom_core.wire.requests import Propose

_HEAVY = r"(torchloom_core\.(?!wire\b|capabilities\b)|numpy\b|nats\b|cyclopts\b)"
"""What a capability's messages must not import, since trainers load them."""


class CapabilityContract:
    """Subclass it as ``class TestMyCapability(CapabilityContract)`` and pytest runs it.

    The capability has to be installed, as by ``pip install -e .``.

    Attributes
    ----------
    actions : sequence of Action
        Actions of its kind. The first has to be possible in the run of :meth:`inputs`; all of them
        together send each operation of the kind.
    arguments : sequence of str, optional
        The words after the command with which a person requests the first action; None: the
        command line is not tried.

    Examples
    --------
    >>> from torchloom_core.plugin import CollectDump
    >>> from torchloom_core.testing import CapabilityContract
    >>> class TestDump(CapabilityContract):
    ...     actions = (CollectDump(worker="g0-0"),)
    ...     arguments = ("g1-0",)
    >>> TestDump().test_it_is_carried_out()
    >>> TestDump().test_its_command_proposes_the_action()
    Traceback (most recent call last):
    AssertionError: need CollectDump(worker='g0-0') of 'dump g1-0', was CollectDump(worker='g1-0')
    """

    actions: ClassVar[Sequence[Action]]
    arguments: ClassVar[Sequence[str] | None] = None

    def inputs(self) -> Sequence[Input | Telemetry]:
        """Return what a Weaver receives until the first action is possible.

        By default the workers of :func:`~torchloom_core.testing.hellos`, which support all
        operations of the kind.
        """
        verbs = (_tag(operation) for operation in self.kind().operations)
        return hellos({"fenced_change": 0, **dict.fromkeys(verbs)})

    def name(self) -> str:
        """Return the name of the capability."""
        return name_of(self.actions[0])

    def kind(self) -> ActionKind[Any]:
        """Return its KIND."""
        return unguarded_kind(self.name())

    def outputs(self, action: Action) -> list[Output]:
        """Return what a new Weaver puts out until the action is done."""
        return SmallRun(self.inputs()).carry_out(action)

    def sent(self) -> list[Operation]:
        """Return all operations that the actions which are possible send to workers."""
        kind, run = self.kind(), SmallRun(self.inputs()).run
        possible = (action for action in self.actions if not kind.obstacle(action, run))
        return [stage.operation for one in possible for stage in kind.stages(one, run).stages]

    def test_it_is_found_by_its_entry_point(self) -> None:
        """Check name, action and modules; all actions are of this kind."""
        name = self.name()
        assert name in installed(), f"need an entry point {name}, was {', '.join(installed())}"
        found = action_type(name)
        for action in self.actions:
            assert type(action) is found, f"need an action {found.__name__}, was {action}"
        for part in ("kind", "answer", "command"):
            find_part(name, part)

    def test_a_trainer_loads_only_its_messages(self) -> None:
        """Check that the package itself imports nothing of torchLoom that trainers do not need."""
        module = import_module(installed()[self.name()])
        imported = [
            name
            for part in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(part, ast.Import | ast.ImportFrom)
            for name in (getattr(part, "module", None), *(alias.name for alias in part.names))
        ]
        heavy = [name for name in imported if re.match(_HEAVY, name or "")]
        assert not heavy, f"need {module.__name__} to import torchloom_core.wire, was {heavy}"

    def test_its_messages_can_be_sent(self) -> None:
        """Check that they are frozen, come back equal, and that unknown fields are ignored."""
        for message in self.actions:
            _check_message(message, Action, "kind")
            want = Propose(action=message)
            assert from_json(encode(want), Propose) == want, f"need it nested in {want}"
        for operation in self.sent():
            _check_message(operation, Operation, "verb")

    def test_its_kind_fits_the_safety_limits(self) -> None:
        """Check target, groups moved and impact, on which the limits depend."""
        kind = self.kind()
        assert kind.message is action_type(self.name()), f"need message of KIND, was {kind.message}"
        assert kind.high_impact or not kind.moves_group, "need high_impact with moves_group"
        assert kind.changes_run or not kind.high_impact, "need changes_run with high_impact"
        for action in self.actions:
            _check_line(kind.target(action), f"target of {action}", "some")
            _check_line(summary_of(msgspec.to_builtins(action)), f"describe of {action}", "some")
            assert kind.takes(action) <= kind.moves(action), f"need takes within moves of {action}"

    def test_an_obstacle_is_one_line(self) -> None:
        """Check that nothing raises in a run without workers, and that the first is possible."""
        kind, empty, run = self.kind(), SmallRun().run, SmallRun(self.inputs()).run
        for action in self.actions:
            _check_line(kind.obstacle(action, empty), f"obstacle of {action}")
            _check_line(kind.obstacle(action, run), f"obstacle of {action}")
            _check_line(kind.warning(action, run), f"warning of {action}")
        obstacle = kind.obstacle(self.actions[0], run)
        assert not obstacle, f"need the first action to be possible, was {obstacle!r}"

    def test_it_is_carried_out(self) -> None:
        """Check that it is granted, sends its declared operations, and has a summary."""
        outputs = self.outputs(self.actions[0])
        (verdict,) = [output for output in outputs if isinstance(output, Verdict)]
        assert verdict.granted, f"need a grant, was {verdict.rule}: {verdict.reason}"
        for outcome in outputs:
            if isinstance(outcome, Outcome):
                assert outcome.result == "done", f"need it done, was {outcome.result}"
                _check_line(outcome.detail, "summary", "some")
        declared, sent = {*self.kind().operations}, {type(operation) for operation in self.sent()}
        assert declared == sent, f"need operations {_names(sent)}, was {_names(declared)}"

    def test_the_same_action_has_the_same_result(self) -> None:
        """Check that two Weavers do the same, so that a replay does too."""
        for action in self.actions:
            first, second = self.outputs(action), self.outputs(action)
            assert first == second, f"need the same outputs of {action}, was different"

    def test_the_fleet_model_answers_all_operations_or_none(self) -> None:
        """Check ANSWER on a small fleet; without one the operations are refused by name."""
        answer, declared = answer_of(self.name()), {*self.kind().operations}
        answered = {*answer.of_group, *answer.of_run}
        assert answered in (set(), declared), f"need an answer for {_names(declared - answered)}"
        for action in self.actions:
            answer.done(_fleet(), action)
        for operation in self.sent():
            _check_line(_answered(answer, operation), f"answer to {operation}")

    def test_its_command_proposes_the_action(self) -> None:
        """Check that ``arguments`` request the first action."""
        if self.arguments is None:
            return
        from torchloom_core.cli import weaver_client
        from torchloom_core.cli.app import app
        from torchloom_core.cli.found_command import verb_of
        from torchloom_core.cli.installed_commands import add_installed

        words = (verb_of(self.name()), *self.arguments)
        add_installed(words)
        with mock.patch.object(weaver_client, "act") as act:
            app(words, exit_on_error=False, print_error=False, result_action="return_value")
        action = act.call_args.args[2]["action"]
        text = f"need {self.actions[0]} of {' '.join(words)!r}, was {action}"
        assert action == self.actions[0], text


def _check_message(message: Any, base: type[Any], tag_field: str) -> None:
    config = message.__struct_config__
    assert config.frozen, f"need {type(message).__name__} with frozen=True"
    assert config.tag_field == tag_field, f"need tag_field={tag_field!r}, was {config.tag_field!r}"
    data = encode(message)
    same = from_json(data, base)
    assert same == message, f"need {message} from its JSON, was {same}"
    newer = msgspec.json.encode({**msgspec.json.decode(data), "field_of_a_later_version": 1})
    assert from_json(newer, base) == message, "need unknown fields to be ignored"


def _check_line(text: Any, what: str, needs: str = "") -> None:
    is_line = isinstance(text, str) and "\n" not in text and (text or not needs)
    assert is_line, f"need one line as {what}, was {text!r}"


def _tag(message: Any) -> str:
    return str(message.__struct_config__.tag)


def _names(operations: Any) -> str:
    return ", ".join(sorted(map(_tag, operations))) or "none"


def _fleet() -> FleetModel:
    """Return a job of two groups on n0 and n1, and a standby on n2, which has trained 1,000 s."""
    tier = Tier(save_s=10.0, restart_s=60.0, interval_s=600.0)
    job = JobSpec(
        groups=2,
        nodes_per_group=1,
        gpus_per_node=8,
        standbys=1,
        spares=0,
        recovery="per_step",
        step_s=1.0,
        durable=tier,
        local=None,
        proactive_save_s=10.0,
        detect_s=30.0,
        migrate_s=30.0,
        rejoin_s=30.0,
        provision_s=30.0,
        warm_up_s=30.0,
        inspect_s=600.0,
    )
    model = FleetModel(job, ("n0", "n1", "n2"), (), start_ns=0, end_ns=10**13)
    model.advance(10**12)
    return model


def _answered(answer: FleetAnswer, operation: Operation) -> str:
    model = _fleet()
    if of_group := answer.of_group.get(type(operation)):
        return of_group(model, model.workers()[0].group)
    of_run = answer.of_run.get(type(operation))
    return of_run(model, operation) if of_run else ""
