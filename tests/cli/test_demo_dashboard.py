"""The demo prints the links and ends of its dashboard, which the Weaver starts and restarts."""

import io

import pytest
from rich.console import Console

from torchloom_core.demos.dashboard import print_news
from torchloom_core.floor.errors import StateError

LINK = "http://127.0.0.1:29512/?token=a"
ENDED = "the dashboard exited with status -9:"


def test_links_and_restarts_are_printed_once_and_a_failed_start_ends_the_demo(tmp_path):
    log, console = tmp_path / "weaver.err", Console(file=io.StringIO(), width=200)
    log.write_text(
        f"dashboard link, for one browser: {LINK}\n12:00 WARNING {ENDED} restarting it\n"
    )
    printed = print_news(log, 0, console)
    assert print_news(log, printed, console) == printed == 2
    assert console.file.getvalue() == (
        f"dashboard link, for one browser: {LINK}\n{ENDED} restarting it\n"
    )
    log.write_text(f"{log.read_text()}{ENDED} the Weaver continues without it\n")
    with pytest.raises(StateError, match=r"the dashboard did not start; see .*weaver\.err"):
        print_news(log, printed, console)
