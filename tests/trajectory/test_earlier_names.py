"""Records and state of format 1 are read under the present names."""

import msgspec

from torchloom_core.live.trajectory.earlier_names import decision_of, renamed, renamed_config
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.operations import FencedChange, SetKnobs
from torchloom_core.wire.plans import Stage
from torchloom_core.wire.steering import LighthouseView


def test_a_stored_stage_is_read():
    change = {"verb": "together", "number": 3, "do": {"verb": "set_knobs", "values": {"seat": 1}}}
    data = msgspec.json.encode({"deed": change, "lives": [["g0-0", 5]]})
    stage = from_json(renamed(data), Stage)
    assert stage.operation == FencedChange(number=3, do=SetKnobs(values={"seat": 1}))
    assert renamed(msgspec.json.encode(stage)) == msgspec.json.encode(stage)


def test_actuators_and_the_config_are_read():
    hello = {"actuators": ["drain", "together", "tell"], "door": {"knock": "0"}}
    assert msgspec.json.decode(renamed(msgspec.json.encode(hello))) == {
        "actuators": ["drain", "fenced_change", "write_log"],
        "probe_address": {"token": "0"},
    }
    assert renamed_config({"room": {"port": 0}}) == {"dashboard": {"port": 0}}


def test_the_lighthouse_and_the_judgement_of_a_preview_are_read():
    view = renamed(b'{"run":"r","life":4,"quorum_id":2}')
    assert msgspec.json.decode(view, type=LighthouseView).incarnation == 4
    fields = {"piece": '{"part":"judgement","says":"worse"}', "life": 1}
    note = {"kind": "preview", "fields": fields}
    assert msgspec.json.decode(renamed(msgspec.json.encode(note)))["fields"] == {
        "piece": '{"part":"judgement","result":"worse"}',
        "life": 1,
    }


def test_names_of_nodes_and_workers_are_left_as_they_are():
    state = b'{"cordoned_until_ns":{"room":1},"missed":{"wish-0":"it has ended"}}'
    assert renamed(state) == state


def test_only_decisions_are_compared():
    granted = b'{"granted":true,"reason":"no stand-by is left"}'
    assert decision_of(granted) == decision_of(b'{"granted":true,"reason":"no standby is left"}')
    assert decision_of(granted) != decision_of(b'{"granted":false,"reason":"no stand-by is left"}')
