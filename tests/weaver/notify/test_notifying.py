"""A Weaver sends messages to people, and waits for no channel."""

import asyncio
import json

import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from tests.weaver.notify.test_channels import SECRET, HttpServer
from torchloom_core.cli.notify_command import send_test
from torchloom_core.config.notify import Notify
from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.weaver.notify.alarms import Alarm
from torchloom_core.live.weaver.notify.grouping import Groups
from torchloom_core.live.weaver.notify.notifier import Notifier
from torchloom_core.wire import subjects
from torchloom_core.wire.events import DeliveryStatus


@pytest.fixture
def server():
    server = HttpServer()
    yield server
    server.stop()


@pytest.mark.integration
async def test_the_kill_switch_reaches_a_person_once_the_server_is_back(
    start_weaver, server, tmp_path, caplog
):
    (tmp_path / "url").write_text(server.url)
    server.refuse(for_good=False)
    url = await start_weaver(
        f"[notify.chat]\nkind = 'slack'\nurl = 'file:{tmp_path / 'url'}'\ngroup_s = 0"
    )
    credentials = Credentials.find(tmp_path, "run")
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    noticed = await person.subscribe(subjects.out("run", "notice"))
    await settle(person)
    answer = await person.request("tl.ctl.run.operator.actions.stop", b"", timeout=DEADLINE_S)
    assert json.loads(answer.data)["ok"]
    text = json.loads((await noticed.next_msg(DEADLINE_S)).data)["text"]
    assert "effector notify.chat: n1" in text or "retrying: kill_switch, 1: HTTP status 503" in text
    server.status = 200
    await eventually(lambda: server.got)
    assert "operator stopped all actions" in json.dumps(server.got)
    await person.close()

    def results():
        (epoch,) = read_epochs(run_folder(tmp_path, "run"))
        return [m.result for _, _, m, _ in epoch.inputs() if isinstance(m, DeliveryStatus)]

    await eventually(lambda: results() == ["retrying", "delivered"])
    recorded = b"".join(
        path.read_bytes() for path in run_folder(tmp_path, "run").rglob("*") if path.is_file()
    )
    assert SECRET.encode() not in recorded
    assert SECRET not in caplog.text


async def test_a_channel_that_hangs_or_breaks_delays_nothing_and_is_reported():
    class Broken:
        def send(self, message):
            raise KeyError(message.id)

    reported = []
    groups = Groups(Notify(group_s=0, repeat_s=0), "run", "n1.x")
    notifier = Notifier("x", Broken(), groups, asyncio.get_running_loop().time, reported.append)
    running = asyncio.create_task(notifier.run())
    notifier.take(Alarm("fault", "fault", "g0-0 exited"))
    await eventually(lambda: reported)
    notifier.take(Alarm("fault", "fault", "g1-0 exited"))
    await eventually(lambda: len(reported) == 2)
    running.cancel()
    assert [(one.effector, one.result) for one in reported] == [("notify.x", "given_up")] * 2


def test_notify_test_sends_a_message_or_fails_with_one_line_a_channel(server, tmp_path, capsys):
    config = tmp_path / "torchloom.toml"
    config.write_text(f"[notify.hook]\nkind = 'webhook'\nurl = '{server.url}'\n")
    send_test(config=config)
    assert "hook: HTTP status 200" in capsys.readouterr().out
    assert server.got[0][2]["cause"] == "test"
    server.refuse(for_good=True)
    with pytest.raises(StateError, match=r"^hook: HTTP status 404$"):
        send_test("hook", config=config)
