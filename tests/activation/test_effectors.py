"""An effector is found like any plugin, and only the Weaver builds it."""

import msgspec
import pytest

from torchloom_core.config.loading import parse
from torchloom_core.floor.errors import ConfigError
from torchloom_core.interface.contract import contract_problem, subscriptions_problem
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.plugin import Notice, Outcome, PluginError, Proposal, Subscription


class Pager:
    name = "pager"
    subscriptions = (Subscription(Notice),)

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        url: str

    def __init__(self, options):
        if options.url == "broken":
            raise PluginError("no such pager")

    async def send(self, delivery):
        return None


def start(text, **options):
    infos = [PluginInfo("pager", "effector", "pager", "tests", "1.0", cls=Pager)]
    return activate(parse(text), infos, "torchloom.toml", text, **options)


def test_it_is_in_dry_run_unless_the_config_says_otherwise():
    for line, mode in (("", "dry_run"), ("\nmode = 'act'", "act")):
        text = f"[effectors.pager]\nurl = 'here'{line}"
        (active,) = start(text, with_effectors=True).effectors
        assert (active.name, active.mode) == ("pager", mode)
        assert start(text).effectors == ()  # a replay or a backtest


def test_a_wrong_option_or_name_is_a_config_error():
    for text, message in (
        ("[effectors.pager]", "torchloom.toml:1: effectors.pager: missing key 'url'"),
        ("[effectors.page]", "torchloom.toml:1: effectors.page: no effector has this name"),
        ("[effectors.pager]\nmode = 'shadow'", "effectors.pager.mode: need one of act, dry_run"),
    ):
        with pytest.raises(ConfigError) as error:
            start(text, with_effectors=True)
        assert message in str(error.value)


def test_one_that_cannot_be_built_is_left_out_with_a_warning():
    active = start("[effectors.pager]\nurl = 'broken'", with_effectors=True)
    assert active.effectors == ()
    (warning,) = active.warnings
    assert warning == (
        "effector pager: cannot be built: PluginError: no such pager; nothing is sent to it"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "workers"}, "need a name other than workers, lighthouse, which are built in"),
        ({"send": lambda self, delivery: None}, "send is not async: need async def send"),
        ({"send": None}, "need a method send(self, delivery), has none"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused(changes, problem):
    assert contract_problem("effector", type("Broken", (Pager,), changes)).startswith(problem)


@pytest.mark.parametrize(
    ("subscriptions", "problem"),
    [
        ((), "need at least one Subscription in .subscriptions, was ()"),
        ((Notice,), "need a Subscription to one of Verdict, Outcome, CordonOver, Notice, was"),
        ((Subscription(Proposal),), "need a Subscription to one of"),
        ((Subscription(Notice, ("cordon",)),), "need actions only for Verdict and Outcome, was"),
        (
            (Subscription(Outcome, ("cordn",)),),
            "unknown action 'cordn'; did you mean",
        ),
    ],
)
def test_wrong_subscriptions_are_refused(subscriptions, problem):
    effector = type("Broken", (Pager,), {"subscriptions": subscriptions})
    assert subscriptions_problem(effector).startswith(problem)
