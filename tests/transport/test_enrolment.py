"""Granting of worker names."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.floor.errors import StateError
from torchloom_core.live.transport.security import grants as grants_module
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.transport.security.nats_jwt import is_user_key, new_seed, public_key
from torchloom_core.wire.messages import JoinRequest

KEY, OTHER_KEY = public_key(new_seed("user")), public_key(new_seed("user"))


def ask(worker="g0-0", incarnation=1, key=KEY, run="run"):
    return JoinRequest(run=run, worker=worker, incarnation=incarnation, public_key=key)


@pytest.fixture
def enrolment():
    return enrolment_of(Grants())


def enrolment_of(grants):
    return Enrolment("run", lambda worker, process, key: f"{worker}:{process}:{key}", grants)


def test_a_free_name_is_granted(enrolment):
    assert enrolment.grant(ask()).jwt == f"g0-0:1:{KEY}"


def test_the_holder_may_repeat_its_request(enrolment):
    enrolment.grant(ask())
    assert enrolment.grant(ask(incarnation=2)).jwt


def test_the_name_of_a_live_worker_is_refused_to_another_key(enrolment):
    enrolment.grant(ask(incarnation=7))
    reply = enrolment.grant(ask(incarnation=8, key=OTHER_KEY))
    assert reply.jwt == ""
    assert reply.error == (
        "worker g0-0 is already enrolled by another running process (incarnation 7); "
        "give each process its own group and rank"
    )


def test_a_released_name_is_granted_to_another_key(enrolment):
    enrolment.grant(ask())
    enrolment.release("g0-0")
    assert enrolment.grant(ask(incarnation=2, key=OTHER_KEY)).jwt == f"g0-0:2:{OTHER_KEY}"


def test_a_name_without_a_holder_may_be_released(enrolment):
    enrolment.release("g0-0")
    assert enrolment.grant(ask()).jwt


def test_a_worker_that_an_earlier_weaver_enrolled_keeps_its_name(enrolment):
    enrolment.seen("g0-0", 5)
    assert "process (incarnation 5)" in enrolment.grant(ask(key=OTHER_KEY)).error


def test_the_name_of_a_living_worker_is_reserved_and_that_of_an_ended_one_is_free(enrolment):
    assert "process (incarnation 5)" in enrolment.admit(ask(), 5).error
    assert enrolment.admit(ask(), None).jwt
    assert enrolment.admit(ask(incarnation=2, key=OTHER_KEY), None).jwt


def test_an_unwanted_worker_is_refused_and_leaves_the_name_free(enrolment, caplog):
    reply = enrolment.admit(ask(), None, "node n1 is cordoned")
    assert (reply.jwt, reply.error, reply.unwanted) == ("", "node n1 is cordoned", True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "'g0-0' may not join: node n1 is cordoned (1 so far)"
    assert enrolment.grant(ask(key=OTHER_KEY)).jwt


def test_an_admitted_worker_is_not_logged(enrolment, caplog):
    reply = enrolment.admit(ask(), None)
    assert reply.jwt
    assert not reply.unwanted
    assert not caplog.records


def test_refusals_are_logged_in_one_short_line_a_name_and_a_minute(enrolment, caplog):
    for _ in range(100):
        enrolment.admit(ask(worker="evil\n\x1b[2J" + "x" * 100_000), None)
        enrolment.admit(ask(run="r\n" * 100_000), None)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    for number in range(10_000):
        enrolment.admit(ask(worker=f"g{number}.0"), None)
    assert len(caplog.records) <= 64


def test_a_refusal_is_short_for_any_request(enrolment):
    odd = "\x00" * 100_000
    for request in (ask(worker=odd), ask(run=odd), ask(key=odd)):
        assert len(enrolment.admit(request, None).error) < 1000


def test_a_reported_worker_retains_its_key(enrolment):
    enrolment.grant(ask())
    enrolment.seen("g0-0", 1)
    assert enrolment.grant(ask()).jwt


def test_an_incarnation_is_granted_to_one_key_even_after_its_end(enrolment):
    enrolment.grant(ask())
    enrolment.release("g0-0")
    assert enrolment.grant(ask(key=OTHER_KEY)).error == (
        "worker g0-0: incarnation 1 was given to another key; "
        "each process of a worker needs a new number"
    )
    assert enrolment.grant(ask()).jwt == f"g0-0:1:{KEY}"
    enrolment.release("g0-0")
    assert enrolment.grant(ask(worker="g1-0", key=OTHER_KEY)).jwt
    assert enrolment.grant(ask(incarnation=2, key=OTHER_KEY)).jwt
    enrolment.release("g0-0")
    assert "was given to another key" in enrolment.grant(ask(incarnation=2)).error


def test_an_incarnation_granted_by_an_earlier_weaver_is_refused_to_another_key(tmp_path):
    path = tmp_path / "granted.jsonl"
    assert enrolment_of(Grants(path)).grant(ask()).jwt
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'["g1-0",1,"U')  # and the disk was full
    for _ in range(2):
        later = enrolment_of(Grants(path))
        assert "was given to another key" in later.grant(ask(key=OTHER_KEY)).error
        assert later.grant(ask()).jwt
        later.release("g0-0")
    assert len(path.read_text().splitlines()) == 1


def test_a_grant_that_a_full_disk_cut_short_does_not_swallow_the_next(tmp_path, monkeypatch):
    path = tmp_path / "granted.jsonl"
    grants, write = Grants(path), os.write
    monkeypatch.setattr(grants_module.os, "write", lambda file, line: write(file, line[:9]))
    grants.add(("g0-0", 1), "key")
    monkeypatch.undo()
    grants.add(("g1-0", 1), "key")
    assert Grants(path).newest(9) == [("g1-0", 1, "key")]


def test_an_invalid_file_of_grants_is_one_clear_line(tmp_path):
    with pytest.raises(StateError, match=r"granted\.jsonl: cannot be read: Is a directory"):
        Grants(folder(tmp_path / "granted.jsonl"))


def test_a_grant_that_cannot_be_written_is_valid_while_the_weaver_runs(tmp_path, caplog):
    enrolment = enrolment_of(Grants(tmp_path / "granted.jsonl"))
    folder(tmp_path / "granted.jsonl")
    assert enrolment.grant(ask()).jwt
    assert "granted.jsonl: cannot be written: Is a directory" in caplog.text
    enrolment.release("g0-0")
    assert "was given to another key" in enrolment.grant(ask(key=OTHER_KEY)).error


def folder(path):
    path.mkdir()
    return path


def test_the_oldest_of_too_many_grants_are_forgotten(monkeypatch, tmp_path):
    monkeypatch.setattr(grants_module, "MOST_GRANTS", 3)
    enrolment = enrolment_of(Grants(tmp_path / "granted.jsonl"))
    for incarnation in range(5):
        assert enrolment.admit(ask(incarnation=incarnation), None).jwt
    errors = [
        enrolment.admit(ask(incarnation=process, key=OTHER_KEY), None).error
        for process in (4, 3, 2, 1)
    ]
    assert [bool(error) for error in errors] == [True, True, True, False]
    enrolment_of(Grants(tmp_path / "granted.jsonl"))
    assert len((tmp_path / "granted.jsonl").read_text().splitlines()) == 3


def test_the_file_of_grants_does_not_grow_without_end(monkeypatch, tmp_path):
    monkeypatch.setattr(grants_module, "MOST_GRANTS", 3)
    path = tmp_path / "granted.jsonl"
    enrolment = enrolment_of(Grants(path))
    for incarnation in range(50):
        assert enrolment.admit(ask(incarnation=incarnation), None).jwt
        assert len(path.read_text().splitlines()) <= 6
    assert (
        "was given to another key"
        in enrolment_of(Grants(path)).grant(ask(incarnation=49, key=OTHER_KEY)).error
    )


def test_only_the_last_incarnation_that_got_a_name_may_start(enrolment):
    enrolment.grant(ask(incarnation=9))
    enrolment.release("g0-0")
    enrolment.grant(ask(incarnation=5, key=OTHER_KEY))
    assert not enrolment.may_begin("g0-0", 9)
    assert enrolment.may_begin("g0-0", 5)
    assert enrolment.may_begin("g0-0", 7)  # which an earlier Weaver may have enrolled
    enrolment.release("g0-0")
    enrolment.grant(ask(incarnation=9))
    assert enrolment.may_begin("g0-0", 9)


@pytest.mark.parametrize("worker", ["", "g0.0", "*", ">", "g 0", "x" * 65, "g0\n", "{{name()}}"])
def test_a_bad_name_is_one_clear_line(enrolment, worker):
    error = enrolment.grant(ask(worker=worker)).error
    assert error.startswith("need a worker name of 1 to 64 of A-Z a-z 0-9 _ -, was ")
    assert "\n" not in error


@pytest.mark.parametrize(
    "key",
    ["", "U", KEY[:-1], KEY.lower(), public_key(new_seed("account")), "U" * 56],
    ids=["empty", "short", "cut", "lower", "an account's", "no checksum"],
)
def test_a_bad_key_is_one_clear_line(enrolment, key):
    error = enrolment.grant(ask(key=key)).error
    assert error.startswith("worker g0-0: need the public key of a NATS user (U...), was ")


def test_another_runs_worker_is_refused(enrolment):
    assert enrolment.grant(ask(run="other")).error == "need run run, was 'other'"


@given(st.text())
def test_no_text_but_a_key_is_taken_for_one(text):
    assert not is_user_key(text)
