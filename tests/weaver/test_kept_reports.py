"""A report is acknowledged once it is on record: a kill a moment later loses nothing."""

import nats
import pytest

from tests.waiting import eventually
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.messages import Note

pytestmark = pytest.mark.integration

SLOW_TICK = "tick_s = 3600.0\n"


async def test_a_note_that_is_acknowledged_is_in_the_record_though_nothing_follows_from_it(
    start_weaver, tmp_path
):
    url = await start_weaver(SLOW_TICK)
    creds = str(tmp_path / "broker" / "keys" / "weaver.creds")
    client = await nats.connect(url, user_credentials=creds)
    js = client.jetstream()
    note = Note(
        run="run", worker="g0-0", incarnation=1, kind="hang", fields={"trace": "stands"}, ts_ns=1
    )
    await js.publish(subjects.event("run", "g0-0", 1), codec.encode(note))

    async def is_acknowledged():
        (info,) = await js.consumers_info(subjects.report_stream("run"))
        return info.ack_floor.stream_seq == 1

    await eventually(is_acknowledged)
    (events,) = tmp_path.glob("trajectory/run/*/events-*.jsonl")
    assert '"trace":"stands"' in events.read_text()
    await client.close()
