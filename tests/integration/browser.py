"""A browser as the dashboard sees it: it opens the link, listens, and sends requests."""

import contextlib
import http.client
import json
import re
import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests import waiting
from tests.dashboard.frames import painted
from tests.deadlines import DEADLINE_S

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[dashboard]
port = 0

[arbiter]
cooldown_s = 0
"""


class Dashboard:
    """The dashboard's process, and the links that it prints."""

    def __init__(self, run, number=1, *words, stdin=None):
        self.out, self.err = (run.folder / f"dashboard-{number}.{end}" for end in ("out", "err"))
        with self.out.open("w") as stdout, self.err.open("w") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torchloom_core.cli",
                    "dashboard",
                    "--config",
                    run.config,
                    *words,
                ],
                cwd=run.folder,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        waiting.until(lambda: self.links or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()

    @property
    def links(self):
        """Every link that was printed; the last one is good."""
        return re.findall(r"https?://\S+", self.out.read_text())

    def end(self):
        """Stop it, and return its exit status."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


class Browser:
    """One browser; ``name`` is its person's name."""

    def __init__(self, link, name="ann"):
        parts = urlsplit(link)
        self.host, self.name = parts.netloc, name
        self.origin = f"http://{self.host}"
        status, headers, _ = self.request("GET", f"{parts.path}?{parts.query}", cookie="")
        self.let_in = status == 303
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        self.known = {"places": {}, "stories": {}, "lines": [], "series": {}}
        self.states = self.values = np.zeros(0, np.uint8)
        self.socket = None
        self._sockets = contextlib.ExitStack()

    def close(self):
        """Close its sockets."""
        self._sockets.close()

    def request(self, method, path, body=None, *, cookie=None, origin=None):
        """Return the status, the headers and the bytes of an answer."""
        connection = http.client.HTTPConnection(self.host, timeout=DEADLINE_S)
        headers = {"cookie": self.cookie if cookie is None else cookie}
        if method != "GET":
            headers |= {"origin": origin or self.origin, "content-type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        news = {name.lower(): value for name, value in answer.getheaders()}
        data = answer.read()
        connection.close()
        return answer.status, news, data

    def ask(self, verb, **body):
        """Return the answer to a request of the page."""
        data = json.dumps({"name": self.name, "body": body})
        return json.loads(self.request("POST", f"/ask/{verb}", data)[2])

    def listen(self, **look):
        """Open the socket, and send what the page shows."""
        opened = connect(
            f"ws://{self.host}/live",
            origin=self.origin,
            additional_headers={"cookie": self.cookie},
            open_timeout=DEADLINE_S,
            max_size=None,
        )
        self.socket = self._sockets.enter_context(opened)
        if look:
            self.look(**look)

    def look(self, **look):
        self.socket.send(json.dumps(look))

    def until(self, what):
        """Receive messages until ``what(self)`` is true, and return it."""
        while not (found := what(self)):
            self.take(self.socket.recv(timeout=DEADLINE_S))
        return found

    def is_let_go(self):
        """Wait until the dashboard has closed the socket."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(timeout=DEADLINE_S)

    def take(self, message):
        if isinstance(message, bytes):
            channel = message[1]
            before = self.values if channel else self.states
            _, _, after = painted(message, before)
            if channel:
                self.values = after
            else:
                self.states = after
            return
        news = json.loads(message)
        places = news.pop("places", None)
        if places:
            rows = zip(*places["columns"], strict=True)
            self.known["places"] |= dict(enumerate(rows, places["first"]))
        self.known["stories"] |= {story["id"]: story for story in news.pop("stories", ())}
        self.known["lines"] += news.pop("lines", [])
        self.known["series"] |= news.pop("series", {})
        self.known |= news

    def state(self, worker):
        """Return a worker's state as the page would paint it."""
        names = list(self.known.get("run", {}).get("counts", ()))
        found = [row for row, place in self.known["places"].items() if place[0] == worker]
        return names[self.states[found[0]]] if found and found[0] < len(self.states) else ""

    @property
    def controller(self):
        """The session that holds the control lease."""
        return self.known.get("run", {}).get("status", {}).get("controller", "")


def may_listen(browser, *, cookie, origin):
    """Return whether a socket is opened for this cookie and origin."""
    headers = {"cookie": cookie} if cookie else {}
    url = f"ws://{browser.host}/live"
    try:
        with connect(url, origin=origin, additional_headers=headers, open_timeout=DEADLINE_S):
            return True
    except (InvalidStatus, ConnectionClosed):
        return False
