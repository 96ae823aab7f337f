"""The dashboard shows the recoveries of a recorded run, and computes them only when they change."""

from tests.dashboard.test_recorded_run import read
from tests.recorded_recovery import record_recovery


async def test_a_page_gets_the_recoveries_of_a_recorded_run(tmp_path):
    record_recovery(tmp_path)
    past = await read(tmp_path)
    shown = past.recoveries
    assert shown.version == 0
    shown.compute(past.now_s)
    shown.compute(past.now_s + 5)
    assert shown.version == 1
    (row,) = shown.rows
    assert (row["group"], row["longest"], row["phase"]) == ("g0", "relaunch", "")
