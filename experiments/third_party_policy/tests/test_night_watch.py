from torchloom_core.plugin import SaveCheckpoint
from torchloom_core.testing import PolicyContract, view_of

from torchloom_night_watch import NightWatch

MIDNIGHT_S = 1_700_006_400.0  # 15 November 2023, 00:00 UTC
NOON_S = MIDNIGHT_S + 12 * 3600


class TestContract(PolicyContract):
    policy_class = NightWatch
    options = {"limit_celsius": 51.0, "hysteresis_celsius": 1.0}


def proposals(policy, celsius, now_s=MIDNIGHT_S):
    return list(policy.on_tick(view_of({"gpu_temp_celsius": celsius}, now_s=now_s)))


def watch(**options):
    return NightWatch(NightWatch.Options(**options))


def test_a_hot_room_at_night_has_its_work_saved():
    (proposal,) = proposals(watch(), [85.0, 86.0, 60.0])
    assert proposal.action == SaveCheckpoint()
    assert proposal.net_gpu_s > 0
    assert "above 85 degrees at night, the limit is 80" in proposal.reason


def test_one_hot_gpu_is_not_a_hot_room():
    assert proposals(watch(), [99.0, 60.0, 60.0]) == []


def test_by_day_people_are_there():
    assert proposals(watch(), [85.0], NOON_S) == []


def test_it_saves_once_until_the_room_has_cooled_down():
    policy = watch()
    rooms = [[85.0], [86.0], [79.0], [85.0], [75.0], [85.0]]
    assert [len(proposals(policy, room)) for room in rooms] == [1, 0, 0, 0, 0, 1]
