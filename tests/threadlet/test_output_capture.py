"""A trainer's output is sent line by line where requested, and still printed."""

import contextlib
import io
import logging
import sys

import pytest

from torchloom_threadlet.trainer.trainer_log import (
    LogCapture,
    LogLines,
    OutputCapture,
    wanted_streams,
)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def lines(sent):
    return LogLines(lambda line: sent.append(line) or True)


@contextlib.contextmanager
def captured(lines):
    """Capture the output; no fixture, as pytest sets its own stream after those."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        capture = OutputCapture(lines, ("stdout",))
        capture.start()
        try:
            yield printed
        finally:
            capture.stop()


def texts(sent):
    return [line["text"] for line in sent]


def test_complete_lines_are_sent_and_printed(lines, sent):
    with captured(lines) as printed:
        print("step", 1)  # noqa: T201
        print("half a ", end="")  # noqa: T201
        print("line")  # noqa: T201
        sys.stdout.writelines(["a\nb", "c\n", "\n"])
        assert printed.getvalue() == "step 1\nhalf a line\na\nbc\n\n"
        assert sent == [
            {"level": "info", "logger": "stdout", "text": text}
            for text in ("step 1", "half a line", "a", "bc")
        ]


def test_a_progress_bar_is_sent_with_its_final_text(lines, sent):
    with captured(lines):
        for percent in (10, 50, 100):
            sys.stdout.write(f"\r{percent} %")
        sys.stdout.write("\n")
        assert texts(sent) == ["100 %"]


def test_a_line_without_an_end_takes_bounded_memory(lines, sent):
    with captured(lines):
        for _ in range(1000):
            sys.stdout.write("x" * 1000)
        print()  # noqa: T201
        assert texts(sent) == ["x" * 8000]


def test_output_of_a_logging_handler_is_sent_once_as_a_record(lines, sent):
    with captured(lines):
        log, handler = logging.getLogger("printing"), logging.StreamHandler(sys.stdout)
        log.addHandler(handler)
        records = LogCapture(lines, "warning")
        records.start()
        try:
            log.warning("capture me")
            print("and me")  # noqa: T201
        finally:
            records.stop()
            log.removeHandler(handler)
        assert [(line["logger"], line["text"]) for line in sent] == [
            ("printing", "capture me"),
            ("stdout", "and me"),
        ]


def test_after_stop_the_stream_is_restored(lines, sent):
    with captured(lines) as printed:
        stream = sys.stdout
        assert stream.getvalue() == ""  # all else is the stream's own
    with contextlib.redirect_stdout(printed):
        capture = OutputCapture(lines, ("stdout",))
        capture.start()
        capture.stop()
        assert sys.stdout is printed
    stream.write("not captured\n")
    assert not sent
    assert printed.getvalue() == "not captured\n"


def test_the_streams_come_from_the_environment(caplog):
    assert wanted_streams({}) == ()
    assert wanted_streams({"TORCHLOOM_TRAINER_OUTPUT": "stderr, Stdout,stderr"}) == (
        "stdout",
        "stderr",
    )
    assert wanted_streams({"TORCHLOOM_TRAINER_OUTPUT": "both"}) == ()
    assert "need some of stdout,stderr or nothing, was 'both'" in caplog.text
