"""What a page asks for is passed on, but for what it may not say, and no faster than a person."""

import msgspec
import pytest

from torchloom_core.live.dashboard.app import PageRequests
from torchloom_core.wire.operator import Answer

BODY = b'{"name": "ann", "body": {}}'
FLOOD = 300


class Weaver:
    """Answers whatever it is asked, and counts it."""

    def __init__(self):
        self.asked = []

    async def ask(self, verb, data, timeout_s, tries):
        self.asked.append((verb, msgspec.json.decode(data)["session"]))
        return msgspec.json.encode(Answer(ok=True, text="done"))


@pytest.fixture
def weaver():
    return Weaver()


async def flood(asks, verb, session):
    return [await asks.forward(verb, BODY, session) for _ in range(FLOOD)]


async def test_a_browser_that_asks_without_end_is_not_passed_on_and_all_others_are(weaver):
    asks = PageRequests(weaver)
    answers = await flood(asks, "control.release", "aaaa")
    assert len(weaver.asked) < FLOOD / 2
    assert answers[-1].text == "control.release: need at most 10 requests a second"
    assert not answers[-1].ok
    for verb, session in (("knob.set", "bbbb"), ("actions.stop", "bbbb"), ("actions.stop", "aaaa")):
        assert (await asks.forward(verb, BODY, session)).ok
        assert weaver.asked[-1] == (verb, f"ann.{session}")


@pytest.mark.parametrize("verb", ["status", "knobs", "keys.add", "control", "", "knob.set.x"])
async def test_only_verbs_on_the_list_are_passed_on(weaver, verb):
    answer = await PageRequests(weaver).forward(verb, BODY, "aaaa")
    assert not answer.ok
    assert answer.text.startswith("need one of the page's verbs")
    assert weaver.asked == []
