"""The sockets of a real gloo process group, distinguished from all others of a process."""

import contextlib
import json
import os
import select
import socket
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.preloaded import Preloaded
from tests.threadlet.gloo_peer import configure, ended, issue, process_group
from tests.waiting import until
from torchloom_threadlet.adapters.torchft.connections import Connections

pytestmark = pytest.mark.integration
SMALL, LARGE = 1000, 8_000_000


class Peer:
    """Another member, in a process of its own."""

    def __init__(self, *arguments):
        script = Path(__file__).with_name("gloo_peer.py")
        self.process = Preloaded([script, *arguments], stdin=PIPE, stdout=PIPE)
        self.handle = self.process.stdout.readline().strip()

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())


class Quorum:
    """This process and two peers."""

    def __init__(self, quiet_s, *arguments):
        self.pg = process_group()
        self.connections = Connections(self.pg, quiet_s)
        self.peers = [Peer(*arguments), Peer(*arguments)]

    def configure(self, uuid):
        handles = [self.pg.get_reconfigure_handle(), *(peer.handle for peer in self.peers)]
        for peer in self.peers:
            peer.ask(uuid=uuid, handles=handles)
        configure(self.pg, uuid, handles)
        for peer in self.peers:
            peer.answer()

    def peers_reduce(self, *numbers):
        for peer in self.peers:
            peer.ask(allreduce=numbers)

    def answers(self):
        return [peer.answer() for peer in self.peers]


@pytest.fixture
def quorum():
    """Return a function that makes a quorum."""
    made = []

    def make(quiet_s=0.5, *arguments):
        made.append(Quorum(quiet_s, *arguments))
        return made[-1]

    yield make
    for each in made:
        for peer in each.peers:
            peer.process.kill()
            peer.process.communicate()


class Others:
    """Opens sockets in other threads, as a trainer might while the quorum is formed."""

    def __init__(self):
        self.pairs = []
        self._stack = contextlib.ExitStack()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._open)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def close(self):
        self._stack.close()

    def _open(self):
        while not self._over.wait(0.001):
            enter = self._stack.enter_context
            server = enter(socket.create_server(("127.0.0.1", 0)))
            ours = enter(socket.create_connection(server.getsockname()))
            theirs = enter(server.accept()[0])
            served, inherited = (enter(contextlib.closing(select.epoll())) for _ in range(2))
            served.register(server)
            served.register(ours)
            os.set_inheritable(inherited.fileno(), True)
            inherited.register(theirs)
            self.pairs.append((ours, theirs))

    def still_talk(self):
        for ours, theirs in self.pairs:
            for one, other in ((ours, theirs), (theirs, ours)):
                one.sendall(b"hello")
                assert other.recv(5) == b"hello"


def test_a_cut_ends_a_collective_and_touches_no_other_socket(quorum):
    three = quorum()
    with Others() as others:
        three.configure(7)
    assert others.pairs
    work = issue(three.pg, SMALL)
    assert not work.is_completed()
    assert three.connections.refusal(7) == ""
    assert three.connections.cut(7) == "2 connections of quorum 7 are shut down"
    assert "Connection closed" in ended(work)
    others.still_talk()
    others.close()
    three.configure(8)  # over the store, whose connections are unchanged
    three.peers_reduce(SMALL)
    assert ended(issue(three.pg, SMALL)) == ""
    assert three.answers() == [[""], [""]]


def test_a_wait_without_a_lock_can_be_ended_from_another_thread(quorum):
    three = quorum()
    three.configure(7)
    waiting = threading.Event()
    errors = []

    def wait():
        work = issue(three.pg, SMALL)
        waiting.set()
        errors.append(ended(work))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    three.connections.cut(7)
    thread.join()
    assert "Connection closed" in errors[0]


def test_a_cut_of_an_earlier_quorum_does_not_affect_the_present_one(quorum):
    three = quorum()
    three.configure(7)
    earlier = three.connections._inodes
    three.configure(8)
    assert not earlier & three.connections._inodes
    assert three.connections.refusal(9) == "need the present quorum, 8, was 9"
    assert three.connections.refusal(7) == ""
    over = "quorum 7 is over already, the present one is 8"
    assert three.connections.cut(7) == over
    three.peers_reduce(SMALL)
    assert ended(issue(three.pg, SMALL)) == ""
    assert three.answers() == [[""], [""]]


def test_a_single_group_has_no_connections_to_cut(quorum):
    three = quorum()
    configure(three.pg, 1, [three.pg.get_reconfigure_handle()])
    assert three.connections.refusal(1) == ""
    assert three.connections.cut(1) == "0 connections of quorum 1 are shut down"


@pytest.mark.long
def test_peers_get_all_data_sent_before_the_error_and_then_the_error(quorum):
    three = quorum()
    for uuid in range(1, 11):
        three.configure(uuid)
        three.peers_reduce(LARGE, SMALL)
        assert ended(issue(three.pg, LARGE)) == ""
        three.connections.pass_error_on()
        for first, second in three.answers():
            assert first == ""
            assert "Connection closed" in second or "reset" in second


def test_an_error_between_two_steps_is_not_passed_on(quorum):
    three = quorum()
    three.configure(1)
    three.connections.end_step()
    three.connections.pass_error_on()
    three.peers_reduce(SMALL)
    assert ended(issue(three.pg, SMALL)) == ""
    assert three.answers() == [[""], [""]]
    three.connections.begin_step()
    three.connections.pass_error_on()
    three.peers_reduce(SMALL)
    assert all(any(answer) for answer in three.answers())


def test_peers_that_pass_no_error_on_wait_at_most_their_process_groups_timeout(quorum):
    three = quorum(0.5, "2")
    three.configure(1)
    three.connections.pass_error_on()
    # The neighbour that reads from this rank ends at once; the other one waits for that neighbour.
    three.peers_reduce(SMALL)
    for (answer,) in three.answers():
        assert "Connection closed" in answer or "Timed out" in answer or "reset" in answer


def test_a_collective_in_flight_ends_before_the_error_is_passed_on(quorum):
    three = quorum(quiet_s=float("inf"))
    three.configure(1)
    work = issue(three.pg, LARGE)
    three.connections.pass_error_on()
    three.peers_reduce(LARGE, SMALL)
    assert ended(work) == ""
    for first, second in three.answers():
        assert first == ""
        assert "Connection closed" in second or "reset" in second


def test_an_error_is_passed_on_even_if_a_collective_stalls(quorum):
    three = quorum(quiet_s=0.0)
    three.configure(1)
    work = issue(three.pg, SMALL)
    three.connections.pass_error_on()
    until(lambda: "torchloom-error" not in {thread.name for thread in threading.enumerate()})
    three.peers_reduce(SMALL)
    assert all(any(answer) for answer in three.answers())
    assert ended(work)


def test_connections_that_gloo_opens_later_are_unknown(quorum, monkeypatch):
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    three = quorum()
    three.configure(1)
    assert three.connections.refusal(1) == "the connections of quorum 1 are unknown in this process"


def test_a_steps_works_are_released_at_its_end(quorum):
    three = quorum()
    three.configure(1)
    three.peers_reduce(SMALL)
    work = issue(three.pg, SMALL)
    until(work.is_completed)
    assert three.connections._works == [work]
    three.connections.end_step()
    assert three.connections._works == []
    three.answers()
