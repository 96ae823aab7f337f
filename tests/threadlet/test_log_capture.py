"""A trainer's own log is sent at a limited rate, and its handlers are unchanged."""

import logging
import os

import pytest

from torchloom_threadlet.trainer.trainer_log import LogCapture, LogLines, wanted_level


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def sent():
    return []


def capturing(send, now):
    return LogCapture(LogLines(send, lambda: now[0]), "warning")


@pytest.fixture
def capture(sent, now):
    capture = capturing(lambda line: sent.append(line) or True, now)
    capture.start()
    yield capture
    capture.stop()


LOG = logging.getLogger("mine")


def test_only_records_from_the_level_on_are_sent(capture, sent):
    LOG.info("quiet")
    LOG.warning("loss is %.1f", 2.5)
    LOG.error("worse")
    assert sent == [
        {"level": "warning", "logger": "mine", "text": "loss is 2.5"},
        {"level": "error", "logger": "mine", "text": "worse"},
    ]


def test_another_level_counts_from_the_next_line_on(capture, sent, caplog):
    caplog.set_level(logging.DEBUG)
    capture.set_level("info")
    LOG.info("now it is")
    capture.set_level("off")
    LOG.error("not even that")
    assert [line["text"] for line in sent] == ["now it is"]


def test_the_users_handlers_get_records_as_before(capture, sent, caplog):
    before = list(logging.getLogger().handlers)
    LOG.warning("capture me")
    assert caplog.messages == ["capture me"]
    assert logging.getLogger().handlers == before


@pytest.fixture
def root():
    """The root logger of a script without logging set-up."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    yield root
    root.setLevel(before)


def test_a_lowered_root_level_shows_the_handlers_no_more_records(root, capture, sent, caplog):
    capture.set_level("info")
    LOG.info("step 3")
    LOG.debug("too quiet")
    LOG.warning("capture me")
    assert [line["text"] for line in sent] == ["step 3", "capture me"]
    assert caplog.messages == ["capture me"]
    capture.set_level("warning")
    LOG.info("step 4")
    assert [line["text"] for line in sent] == ["step 3", "capture me"]
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


def test_a_logger_that_has_a_level_of_its_own_keeps_it(root, capture, sent, caplog):
    own = logging.getLogger("own")
    own.setLevel(logging.INFO)
    capture.set_level("debug")
    own.debug("too quiet")
    own.info("as it wants")
    assert [line["text"] for line in sent] == caplog.messages == ["as it wants"]
    own.setLevel(logging.NOTSET)


def test_an_exception_comes_with_its_trace(capture, sent):
    try:
        int("the loss")
    except ValueError:
        LOG.exception("no")
    assert sent[0]["text"].startswith("no\nTraceback")
    assert sent[0]["text"].endswith("'the loss'\n")


def test_a_flood_is_cut_off_and_the_dropped_lines_are_counted(capture, sent, now):
    for number in range(1000):
        LOG.warning("%d", number)
    assert len(sent) == 100
    now[0] = 1.0
    LOG.warning("later")
    assert sent[-1] == {"level": "warning", "logger": "mine", "text": "later", "dropped": 900}
    LOG.warning("and again")
    assert "dropped" not in sent[-1]


def test_lines_that_cannot_be_sent_are_counted_as_dropped(now):
    taken, sent = [False], []

    def send(line):
        sent.append(line)
        return taken[0]

    capture = capturing(send, now)
    capture.start()
    try:
        LOG.warning("a")
        LOG.warning("b")
        taken[0] = True
        LOG.warning("c")
    finally:
        capture.stop()
    assert sent[-1]["dropped"] == 2


def test_the_length_of_a_line_is_bounded(capture, sent):
    LOG.warning("x" * 100_000)
    assert len(sent[0]["text"]) == 8000


class Broken:
    def __str__(self):
        raise RuntimeError("no text")


def test_a_record_that_cannot_be_formatted_is_skipped(capture, sent, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(LOG, "propagate", False)  # pytest's own handler raises
    LOG.warning("%s", Broken())
    LOG.warning("%d", "no number")
    LOG.warning("on we go")
    assert [line["text"] for line in sent] == ["on we go"]
    assert sent[0]["dropped"] == 2


def test_records_logged_while_sending_are_not_sent(now):
    sent = []

    def send(line):
        sent.append(line)
        LOG.error("sending failed")
        return True

    capture = capturing(send, now)
    capture.start()
    try:
        LOG.warning("once")
    finally:
        capture.stop()
    assert [line["text"] for line in sent] == ["once"]


def test_after_stop_nothing_is_sent_and_logging_is_restored(sent, now):
    before = logging.Logger.callHandlers
    capture = capturing(lambda line: sent.append(line) or True, now)
    capture.start()
    assert logging.Logger.callHandlers is not before
    capture.stop()
    assert logging.Logger.callHandlers is before
    LOG.warning("not captured")
    assert not sent


@pytest.mark.integration
def test_a_forked_child_sends_nothing(capture, sent):
    child = os.fork()
    if not child:  # it must not clean up what other tests have loaded
        LOG.warning("from a child")
        os._exit(len(sent))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    LOG.warning("from here")
    assert [line["text"] for line in sent] == ["from here"]


def test_the_level_comes_from_the_environment(caplog):
    assert wanted_level({}) == "warning"
    assert wanted_level({"TORCHLOOM_TRAINER_LOG": "Info"}) == "info"
    assert wanted_level({"TORCHLOOM_TRAINER_LOG": "off"}) == "off"
    assert wanted_level({"TORCHLOOM_TRAINER_LOG": "loud"}) == "warning"
    assert "need one of off, error, warning, info, debug, was 'loud'" in caplog.text


def test_off_leaves_logging_alone(sent):
    before = logging.Logger.callHandlers
    capture = LogCapture(LogLines(lambda line: True), "off")
    capture.start()
    assert logging.Logger.callHandlers is before
    capture.stop()
