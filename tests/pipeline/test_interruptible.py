"""What waits for a lost peer ends with the generation."""

import threading

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.deadlines import DEADLINE_S
from torchloom_threadlet.pipeline.group import Group
from torchloom_threadlet.pipeline.interruptible import Interruptible


def refuse():
    raise RuntimeError("over")


def test_a_call_that_does_not_return_is_ended_and_the_next_one_is_made():
    calls, begun, stuck = Interruptible(), threading.Event(), threading.Event()
    threading.Thread(
        target=lambda: (begun.wait(DEADLINE_S), calls.interrupt(RuntimeError("is over")))
    ).start()
    with pytest.raises(RuntimeError, match="is over"):
        calls.call(lambda: (begun.set(), stuck.wait(DEADLINE_S)), lambda: None)
    assert calls.call(lambda: 1, lambda: None) == 1
    stuck.set()
    with pytest.raises(RuntimeError, match=r"^over$"):
        calls.call(lambda: 1, refuse)
    with pytest.raises(RuntimeError, match=r"^over$"):
        calls.call(refuse, lambda: None)


def test_the_wait_for_a_member_that_never_comes_ends_with_the_generation():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = Group(DEADLINE_S)

    def end_once_there():
        store.wait(["torchloom/1/here/0"])
        group.end(1)

    threading.Thread(target=end_once_there).start()
    with pytest.raises(RuntimeError, match="1 is over"):
        group.form(1, f"127.0.0.1:{store.port}", ("w0", "w1"), "w0")
