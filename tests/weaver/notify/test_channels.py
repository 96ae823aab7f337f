"""Every channel keeps the same contract, against a real server on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from torchloom_core.config.notify import Mail, Slack, Webhook
from torchloom_core.floor.errors import ConfigError
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.live.weaver.notify.channel import SendError
from torchloom_core.live.weaver.notify.grouping import Message
from torchloom_core.live.weaver.notify.notifier import channel_of

SECRET = "k3y-T0"
MESSAGE = Message(
    id="n1.x.1", run="run", cause="fault", count=3, since_s=1_700_000_000.0,
    lines=("g0-0 exited <&>", "g1-0 exited"),
)  # fmt: skip


class HttpServer:
    def __init__(self):
        self.got, self.status = [], 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.status == 200:
                    outer.got.append((self.path, dict(self.headers), body))
                self.send_response(outer.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/{SECRET}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def refuse(self, *, for_good):
        self.status = 404 if for_good else 503

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


class SmtpServer:
    def __init__(self):
        controller = pytest.importorskip("aiosmtpd.controller")
        self.got, self._reply = [], "250 OK"
        self.port = lasting_port("127.0.0.1")
        self._controller = controller.Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()

    async def handle_DATA(self, server, session, envelope):
        if self._reply.startswith("250"):
            self.got.append((envelope.rcpt_tos, envelope.content.decode()))
        return self._reply

    def refuse(self, *, for_good):
        self._reply = "554 no" if for_good else "451 later"

    def stop(self):
        if self._controller.loop.is_running():
            self._controller.stop()


@pytest.fixture
def http_server():
    server = HttpServer()
    yield server
    server.stop()


class ChannelContract:
    """A subclass has fixtures ``server``, with ``got`` and ``refuse``, and ``settings``."""

    def test_a_message_arrives_whole(self, server, settings):
        channel_of(settings).send(MESSAGE)
        (got,) = server.got
        for part in ("[torchLoom run] fault (3 times)", "g1-0 exited", "and 1 more"):
            assert part in json.dumps(got).replace("\\n", " ")

    def test_what_fails_for_now_may_be_tried_again(self, server, settings):
        server.refuse(for_good=False)
        with pytest.raises(OSError, match=r"503|451"):
            channel_of(settings).send(MESSAGE)

    def test_what_is_refused_for_good_is_given_up_and_shows_no_secret(self, server, settings):
        server.refuse(for_good=True)
        with pytest.raises(SendError) as caught:
            channel_of(settings).send(MESSAGE)
        assert SECRET not in str(caught.value)

    def test_a_server_that_is_gone_may_be_tried_again_and_shows_no_secret(self, server, settings):
        server.stop()
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its text is the system's
            channel_of(settings).send(MESSAGE)
        assert SECRET not in str(caught.value)


class TestWebhook(ChannelContract):
    @pytest.fixture
    def server(self, http_server):
        return http_server

    @pytest.fixture
    def settings(self, server, monkeypatch):
        monkeypatch.setenv("TEST_TOKEN", SECRET)
        return Webhook(kind="webhook", url=server.url, token="env:TEST_TOKEN")

    def test_the_token_and_the_id_are_sent_as_headers(self, server, settings):
        channel_of(settings).send(MESSAGE)
        ((_, headers, body),) = server.got
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert headers["Idempotency-Key"] == "run-n1.x.1"
        assert body["count"] == 3

    def test_a_redirect_is_not_followed(self, server, settings):
        server.status = 302
        with pytest.raises(SendError, match="HTTP status 302"):
            channel_of(settings).send(MESSAGE)
        assert server.got == []


class TestSlack(ChannelContract):
    @pytest.fixture
    def server(self, http_server):
        return http_server

    @pytest.fixture
    def settings(self, server, tmp_path):
        (tmp_path / "url").write_text(f"{server.url}\n")
        return Slack(kind="slack", url=f"file:{tmp_path / 'url'}")

    def test_it_has_the_shape_that_slack_takes_and_mentions_nobody(self, server, settings):
        channel_of(settings).send(MESSAGE)
        ((path, _, body),) = server.got
        assert path == f"/hook/{SECRET}"
        assert body["blocks"][0]["type"] == "section"
        assert "g0-0 exited &lt;&amp;&gt;" in body["blocks"][0]["text"]["text"]

    def test_a_secret_that_is_missing_is_named_by_its_place(self, tmp_path):
        settings = Slack(kind="slack", url=f"file:{tmp_path / 'none'}")
        with pytest.raises(ConfigError, match=r"url: .*none cannot be read: No such file"):
            channel_of(settings).send(MESSAGE)


class TestMail(ChannelContract):
    @pytest.fixture
    def server(self):
        server = SmtpServer()
        yield server
        server.stop()

    @pytest.fixture
    def settings(self, server):
        return Mail(
            kind="mail", server=f"127.0.0.1:{server.port}", sender="loom@example.org",
            to=("a@example.org", "b@example.org"), tls="none",
        )  # fmt: skip

    def test_it_goes_to_all_recipients(self, server, settings):
        assert channel_of(settings).send(MESSAGE) == "sent to 2 of 2"
        ((recipients, text),) = server.got
        assert recipients == ["a@example.org", "b@example.org"]
        assert "Auto-Submitted: auto-generated" in text

    def test_a_server_without_tls_gets_no_mail_if_tls_is_wanted(self, server, settings):
        settings = msgspec.structs.replace(settings, tls="starttls")
        with pytest.raises(SendError, match="STARTTLS"):
            channel_of(settings).send(MESSAGE)
        assert server.got == []
