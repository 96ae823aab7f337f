"""A trainer's own log is sent at a limited rate, and its handlers are unchanged."""

import logging
import multiprocessing

import pytest

from torchloom_threadlet.trainer.log_capture import LogCapture, wanted
from torchloom_threadlet.trainer.log_lines import LogLines


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def told():
    return []


def capturing(tell, now):
    return LogCapture(LogLines(tell, lambda: now[0]), "warning")


@pytest.fixture
def capture(told, now):
    capture = capturing(lambda said: told.append(said) or True, now)
    capture.start()
    yield capture
    capture.stop()


LOG = logging.getLogger("mine")


def test_only_records_from_the_level_on_are_sent(capture, told):
    LOG.info("quiet")
    LOG.warning("loss is %.1f", 2.5)
    LOG.error("worse")
    assert told == [
        {"level": "warning", "logger": "mine", "text": "loss is 2.5"},
        {"level": "error", "logger": "mine", "text": "worse"},
    ]


def test_another_level_counts_from_the_next_line_on(capture, told, caplog):
    caplog.set_level(logging.DEBUG)
    capture.set_level("info")
    LOG.info("now it is")
    capture.set_level("off")
    LOG.error("not even that")
    assert [said["text"] for said in told] == ["now it is"]


def test_the_users_handlers_get_records_as_before(capture, told, caplog):
    before = list(logging.getLogger().handlers)
    LOG.warning("hear me")
    assert caplog.messages == ["hear me"]
    assert logging.getLogger().handlers == before


@pytest.fixture
def root():
    """The root logger of a script without logging set-up."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    yield root
    root.setLevel(before)


def test_a_lowered_root_level_shows_the_handlers_no_more_records(root, capture, told, caplog):
    capture.set_level("info")
    LOG.info("step 3")
    LOG.debug("too quiet")
    LOG.warning("hear me")
    assert [said["text"] for said in told] == ["step 3", "hear me"]
    assert caplog.messages == ["hear me"]
    capture.set_level("warning")
    LOG.info("step 4")
    assert [said["text"] for said in told] == ["step 3", "hear me"]
    assert (root.level, type(root.level)) == (logging.WARNING, int)


def test_a_lowered_level_is_restored_at_the_end(root, capture):
    capture.set_level("debug")
    capture.stop()
    assert (root.level, type(root.level)) == (logging.WARNING, int)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.ERROR])
def test_a_level_set_by_the_script_stays(root, capture, caplog, level):
    capture.set_level("info")
    root.setLevel(level)
    LOG.info("mine")
    assert caplog.messages == (["mine"] if level <= logging.INFO else [])
    capture.stop()
    assert root.level == level


def test_a_logger_that_has_a_level_of_its_own_keeps_it(root, capture, told, caplog):
    own = logging.getLogger("own")
    own.setLevel(logging.INFO)
    capture.set_level("debug")
    own.debug("too quiet")
    own.info("as it wants")
    assert [said["text"] for said in told] == caplog.messages == ["as it wants"]
    own.setLevel(logging.NOTSET)


def test_an_exception_comes_with_its_trace(capture, told):
    try:
        int("the loss")
    except ValueError:
        LOG.exception("no")
    assert told[0]["text"].startswith("no\nTraceback")
    assert told[0]["text"].endswith("'the loss'\n")


def test_a_flood_is_cut_off_and_the_dropped_lines_are_counted(capture, told, now):
    for number in range(1000):
        LOG.warning("%d", number)
    assert len(told) == 100
    now[0] = 1.0
    LOG.warning("later")
    assert told[-1] == {"level": "warning", "logger": "mine", "text": "later", "dropped": 900}
    LOG.warning("and again")
    assert "dropped" not in told[-1]


def test_lines_that_cannot_be_sent_are_counted_as_dropped(now):
    taken, told = [False], []

    def tell(said):
        told.append(said)
        return taken[0]

    capture = capturing(tell, now)
    capture.start()
    try:
        LOG.warning("a")
        LOG.warning("b")
        taken[0] = True
        LOG.warning("c")
    finally:
        capture.stop()
    assert told[-1]["dropped"] == 2


def test_the_length_of_a_line_is_bounded(capture, told):
    LOG.warning("x" * 100_000)
    assert len(told[0]["text"]) == 8000


class Broken:
    def __str__(self):
        raise RuntimeError("no text")


def test_a_record_that_cannot_be_formatted_is_skipped(capture, told, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(LOG, "propagate", False)  # pytest's own handler raises
    LOG.warning("%s", Broken())
    LOG.warning("%d", "no number")
    LOG.warning("on we go")
    assert [said["text"] for said in told] == ["on we go"]
    assert told[0]["dropped"] == 2


def test_records_logged_while_sending_are_not_sent(now):
    told = []

    def tell(said):
        told.append(said)
        LOG.error("the link says")
        return True

    capture = capturing(tell, now)
    capture.start()
    try:
        LOG.warning("once")
    finally:
        capture.stop()
    assert [said["text"] for said in told] == ["once"]


def test_after_stop_nothing_is_sent_and_logging_is_restored(told, now):
    before = logging.Logger.callHandlers
    capture = capturing(lambda said: told.append(said) or True, now)
    capture.start()
    assert logging.Logger.callHandlers is not before
    capture.stop()
    assert logging.Logger.callHandlers is before
    LOG.warning("nobody hears")
    assert not told


@pytest.mark.integration
def test_a_forked_child_sends_nothing(capture, told):
    child = multiprocessing.get_context("fork").Process(target=LOG.warning, args=["from a child"])
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not told


def test_the_level_comes_from_the_environment(caplog):
    assert wanted({}) == "warning"
    assert wanted({"TORCHLOOM_TRAINER_LOG": "Info"}) == "info"
    assert wanted({"TORCHLOOM_TRAINER_LOG": "off"}) == "off"
    assert wanted({"TORCHLOOM_TRAINER_LOG": "loud"}) == "warning"
    assert "need one of off, error, warning, info, debug, was 'loud'" in caplog.text


def test_off_leaves_logging_alone(told):
    before = logging.Logger.callHandlers
    capture = LogCapture(LogLines(lambda said: True), "off")
    capture.start()
    assert logging.Logger.callHandlers is before
    capture.stop()
