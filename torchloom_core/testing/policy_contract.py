"""The tests every policy has to pass; a policy's own tests subclass them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torchloom_core.plugin.api import Policy
from torchloom_core.plugin.contract import needs_problem, proposal_problem
from torchloom_core.plugin.view import FleetView
from torchloom_core.testing import checks
from torchloom_core.testing.clock_trap import clock_trap
from torchloom_core.testing.story import TICKS, blank, story
from torchloom_core.wire.events import Proposal

_SEEDS = range(4)


class PolicyContract:
    """Subclass it as ``class TestMyPolicy(PolicyContract)`` and pytest runs it.

    Attributes
    ----------
    policy_class : type
        The policy under test.
    options : dict
        Its options, as under ``[policies.<name>]`` in ``torchloom.toml``. Choose such that
        something happens: a policy that never proposes anything passes easily.

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

    With an option that its ``needs`` forget, the test says so:

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
        """Return a fresh policy with the options."""
        policy: Policy = checks.build(self.policy_class, self.options)
        return policy

    def views(self, seed: int = 0) -> list[FleetView]:
        """Return the fleet's history that the policy is shown, one view a tick."""
        return story(self.make().needs, seed)

    def run(self, views: Sequence[FleetView]) -> list[list[Proposal]]:
        """Return what a fresh policy proposes at each view."""
        policy = self.make()
        return [list(policy.on_tick(view) or ()) for view in views]

    def test_its_name_and_options_fit_the_config(self) -> None:
        """Check ``name`` and ``Options``."""
        checks.check_class(self.policy_class)

    def test_it_declares_what_it_reads(self) -> None:
        """Check ``needs``; reading anything else is a KeyError here as in the Weaver."""
        problem = needs_problem("policy", self.make().needs, math.inf)
        assert not problem, problem
        for seed in _SEEDS:
            self.run(self.views(seed))

    def test_its_proposals_can_be_weighed(self) -> None:
        """Check that it yields Proposals only, with finite prices and a confidence in [0, 1]."""
        for seed in _SEEDS:
            for proposals in self.run(self.views(seed)):
                for proposal in proposals:
                    problem = proposal_problem(proposal)
                    assert not problem, problem
                    assert proposal.reason, "need a reason that a person can read, was empty"

    def test_the_same_views_give_the_same_proposals(self) -> None:
        """Check that a second instance does what the first did."""
        for seed in _SEEDS:
            first, second = self.run(self.views(seed)), self.run(self.views(seed))
            assert first == second, "need the same proposals for the same views, was different"

    def test_it_bears_an_empty_fleet(self) -> None:
        """Check that nobody being there is no error, and proposes nothing."""
        empty = blank(self.make().needs, workers=0)
        proposals = self.run([empty, *self.views()])[0]
        assert proposals == [], f"need no proposals for an empty fleet, was {proposals!r}"

    def test_it_bears_a_fleet_that_measures_nothing(self) -> None:
        """Check that metrics that are missing everywhere are no error."""
        needs = self.make().needs
        self.run([blank(needs, workers=4, tick=tick) for tick in range(TICKS)])

    def test_it_leaves_the_view_as_it_was(self) -> None:
        """Check that other policies find the view unchanged."""
        policy = self.make()
        for view in self.views():
            before = checks.photograph(view, policy.needs)
            list(policy.on_tick(view) or ())
            checks.check_unchanged(before, checks.photograph(view, policy.needs))

    def test_it_reads_no_clock(self) -> None:
        """Check that it knows the time from the view alone."""
        policy, views = self.make(), self.views()
        with clock_trap(self.policy_class) as read:
            for view in views:
                list(policy.on_tick(view) or ())
        assert not read, f"need no clock but view.now_ns, was {read[0]}()"
