"""A quorum in which not all vote has no ballots: each group says in its handle that it does."""

import json
from types import SimpleNamespace

import pytest

from torchloom_threadlet.torchft.voters import Voters


class Group:
    """A process group that is found by a handle, and is configured with those of all."""

    def __init__(self, handle):
        self.handle = handle
        self.configured = None

    def get_reconfigure_handle(self):
        return self.handle

    def reconfigure(self, opts):
        self.configured = opts
        return "work"


def marked(name):
    group = Group(json.dumps({"id": name, "store": "host:1"}))
    Voters(group)
    return group.get_reconfigure_handle()


def test_a_handle_keeps_what_it_says_and_says_that_its_group_votes():
    said = json.loads(marked("a"))
    assert said.pop("torchloom_vote") == 1
    assert said == {"id": "a", "store": "host:1"}


@pytest.mark.parametrize(
    ("other", "all_vote"),
    [
        (marked("b"), True),
        (json.dumps({"id": "b", "store": "host:2"}), False),
        (json.dumps({"id": "b", "torchloom_vote": 2}), False),
        ("no json", False),
        ("[]", False),
    ],
)
def test_one_group_that_does_not_vote_by_these_ballots_is_enough_that_none_does(other, all_vote):
    group = Group("{}")
    voters = Voters(group)
    opts = SimpleNamespace(handles=[marked("a"), other])
    assert group.reconfigure(opts) == "work"
    assert group.configured is opts
    assert voters.all_vote == all_vote


def test_a_handle_that_is_no_json_is_left_as_it_is():
    group = Group("tcp://host:1")
    Voters(group)
    assert group.get_reconfigure_handle() == "tcp://host:1"
