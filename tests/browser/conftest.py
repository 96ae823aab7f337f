"""A real Chromium, driven as a person drives it."""

import shutil
import time

import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.browser import Dashboard
from tests.integration.conftest import start_run  # noqa: F401 - a fixture
from tests.waiting import POLL_S

# Whoever has a browser of another name may link it.
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium():
    """One browser a file: while it is there, nothing else may run a loop in this process."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"need one of {', '.join(NAMES)}: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Tab:
    """A page, with its errors and dialogs, which are confirmed or dismissed."""

    def __init__(self, context):
        self.page_errors, self.questions, self.says_yes = [], [], True
        self.answers = ""
        self.page = context.new_page()
        self.page.set_default_timeout(DEADLINE_S * 1000)
        self.page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.on("dialog", self._on_question)

    def _on_question(self, dialog):
        self.questions.append(dialog.message)
        if self.says_yes:
            dialog.accept(self.answers)
        else:
            dialog.dismiss()

    def _on_console(self, message):
        # A browser itself complains of what it does not reach while the dashboard is away,
        # and of what it is not given while it is shut out.
        away = any(word in message.text for word in ("WebSocket", "net::ERR_CONNECTION_", "401"))
        if message.type == "error" and not away:
            self.page_errors.append(message.text)

    def sees(self, text):
        """Wait until the text is to be seen."""
        self.page.get_by_text(text).first.wait_for()

    @property
    def message(self):
        """What stands in the message line."""
        return self.page.locator("#message").inner_text()

    def waits(self, what):
        """Wait until ``what()`` is true, and let the browser tell meanwhile what happens there."""
        end = time.monotonic() + DEADLINE_S
        while not what():
            assert time.monotonic() < end, f"not true after {DEADLINE_S:g} s"
            self.page.wait_for_timeout(POLL_S * 1000)

    def until(self, expression):
        """Wait until a JavaScript expression is true; the page itself may evaluate no text."""
        self.waits(lambda: self.page.evaluate(expression))


@pytest.fixture
def dashboard(run):
    """The dashboard of a test file's run."""
    dashboard = Dashboard(run)
    yield dashboard
    dashboard.end()


@pytest.fixture
def new_tab(chromium):
    """Return a function that opens a tab of a browser without a session."""
    contexts, tabs = [], []

    def open_tab(**options):
        contexts.append(chromium.new_context(**options))
        tabs.append(Tab(contexts[-1]))
        return tabs[-1]

    yield open_tab
    for context in contexts:
        context.close()
    assert [tab.page_errors for tab in tabs] == [[] for _ in tabs]
