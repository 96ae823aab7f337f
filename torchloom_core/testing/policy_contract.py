"""The tests for all policies; a policy's own tests subclass them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torchloom_core.interface.api import Policy
from torchloom_core.interface.contract import needs_problem, proposal_problem
from torchloom_core.interface.view import FleetView
from torchloom_core.testing import checks
from torchloom_core.testing.clock_trap import clock_trap
from torchloom_core.testing.history import TICKS, blank, history
from torchloom_core.wire.decisions import Proposal

_SEEDS = range(4)


class PolicyContract:
    """Subclass it as ``class TestMyPolicy(PolicyContract)`` and pytest runs it.

    Attributes
    ----------
    policy_class : type
        The policy under test.
    options : dict
        Its options, as under ``[policies.<name>]`` in ``torchloom.toml``. Choose options with
        which it proposes something: otherwise most tests pass trivially.

    Examples
    --------
    >>> import msgspec
    >>> from torchloom_core.plugin import Need
    >>> from torchloom_core.testing import PolicyContract
    >>> class Lookout:
    ...     name = "lookout"
    ...     needs = (Need("loss"),)
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         metric: str = "loss"
    ...
    ...     def __init__(self, options):
    ...         self._metric = options.metric
    ...
    ...     def on_tick(self, view):
    ...         view.latest(self._metric)
    ...         return ()
    >>> class TestLookout(PolicyContract):
    ...     policy_class = Lookout
    >>> TestLookout().test_it_declares_what_it_reads()

    An option whose metric is missing in ``needs`` fails the test:

    >>> class TestGradients(PolicyContract):
    ...     policy_class = Lookout
    ...     options = {"metric": "grad_norm"}
    >>> TestGradients().test_it_declares_what_it_reads()
    Traceback (most recent call last):
    KeyError: 'grad_norm: need a Need of it in needs'
    """

    policy_class: ClassVar[type[Any]]
    options: ClassVar[Mapping[str, Any]] = {}

    def make(self) -> Policy:
        """Return a new policy with the options."""
        policy: Policy = checks.build(self.policy_class, self.options)
        return policy

    def views(self, seed: int = 0) -> list[FleetView]:
        """Return the history of the fleet for the policy, one view per tick."""
        return history(self.make().needs, seed)

    def run(self, views: Sequence[FleetView]) -> list[list[Proposal]]:
        """Return the proposals of a new policy at each view."""
        policy = self.make()
        return [list(policy.on_tick(view) or ()) for view in views]

    def test_its_name_and_options_fit_the_config(self) -> None:
        """Check ``name`` and ``Options``."""
        checks.check_class(self.policy_class)

    def test_it_declares_what_it_reads(self) -> None:
        """Check ``needs``; reading other data is a KeyError, as in the Weaver."""
        problem = needs_problem("policy", self.make().needs, math.inf)
        assert not problem, problem
        for seed in _SEEDS:
            self.run(self.views(seed))

    def test_its_proposals_are_valid(self) -> None:
        """Check that it yields only Proposals, with finite prices and a confidence in [0, 1]."""
        for seed in _SEEDS:
            for proposals in self.run(self.views(seed)):
                for proposal in proposals:
                    problem = proposal_problem(proposal)
                    assert not problem, problem
                    assert proposal.reason, "need a reason, was empty"

    def test_the_same_views_give_the_same_proposals(self) -> None:
        """Check that a second instance makes the same proposals."""
        for seed in _SEEDS:
            first, second = self.run(self.views(seed)), self.run(self.views(seed))
            assert first == second, "need the same proposals for the same views, was different"

    def test_an_empty_fleet_is_no_error(self) -> None:
        """Check that a fleet without workers is no error, and that nothing is proposed."""
        empty = blank(self.make().needs, workers=0)
        proposals = self.run([empty, *self.views()])[0]
        assert proposals == [], f"need no proposals for an empty fleet, was {proposals!r}"

    def test_missing_metrics_are_no_error(self) -> None:
        """Check that metrics without any sample are no error."""
        needs = self.make().needs
        self.run([blank(needs, workers=4, tick=tick) for tick in range(TICKS)])

    def test_it_does_not_modify_the_view(self) -> None:
        """Check that the view is unchanged for other policies."""
        policy = self.make()
        for view in self.views():
            before = checks.snapshot(view, policy.needs)
            list(policy.on_tick(view) or ())
            checks.check_unchanged(before, checks.snapshot(view, policy.needs))

    def test_it_reads_no_clock(self) -> None:
        """Check that it takes the time only from the view."""
        policy, views = self.make(), self.views()
        with clock_trap(self.policy_class) as read:
            for view in views:
                list(policy.on_tick(view) or ())
        assert not read, f"need no clock but view.now_ns, was {read[0]}()"
