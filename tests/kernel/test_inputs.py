"""Registered and unregistered workers, and when predictors are called."""

import numpy as np
import pytest

from tests.kernel.runs import (
    Calls,
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.plugin import Need
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import CommandStatus, ForecastWanted, Notice, Proposed, Reply
from torchloom_core.wire.events import Forecast, Noticed, PredictorFailed


class Oracle:
    name = "oracle"
    needs = ()
    horizon_s = 60.0
    every_s = 3.0


class Needy(Oracle):
    needs = (Need("heat"),)


def forecasting() -> Run:
    return Run(make_kernel(predictors={"oracle": Oracle()}))


def answer(wanted: ForecastWanted) -> Forecast:
    return Forecast(id=wanted.id, predictor=wanted.predictor, horizon_s=60.0, hazard={})


def test_an_unregistered_worker_is_reported_once_per_tick():
    run = Run(make_kernel())
    for _ in range(3):
        run.feed(telemetry("x-0"))
    notice = only(Notice, run.tick())
    assert (notice.kind, notice.worker) == ("stranger", "x-0")
    assert run.tick() == []


def test_a_herd_without_hellos_is_few_notices_a_tick_and_called_only_after_three_seconds():
    run = Run(make_kernel())
    called = []
    for _ in range(6):
        for number in range(1500):
            run.feed(telemetry(f"g{number}-0"))
        *_, last = outputs = run.tick()
        assert len(outputs) == 21
        assert last.text == "1480 more workers send telemetry but have not registered"
        called.append(len(run.kernel.fleet.strangers.to_call(run.kernel.run.now_ns)))
    assert called[0] == 0
    assert called[-1] == 1000  # as many as a roll call names


def test_telemetry_of_a_later_incarnation_is_unregistered_and_of_an_earlier_one_dropped():
    run = Run(make_kernel())
    run.feed(hello("a-0", incarnation=5))
    run.feed(telemetry("a-0", incarnation=4))
    assert run.tick() == []
    run.feed(telemetry("a-0", incarnation=6))
    assert only(Notice, run.tick()).kind == "stranger"


def test_a_worker_above_the_limit_is_reported_once_a_minute_and_not_stored(
    monkeypatch,
):
    monkeypatch.setattr("torchloom_core.live.fleet.workers.MAX_WORKERS", 2)
    run = Run(make_kernel())
    for worker in ("a-0", "b-0"):
        assert only(Notice, run.feed(hello(worker))).kind == "hello"
    notice = only(Notice, run.feed(hello("c-0")))
    assert (notice.kind, notice.worker) == ("full", "c-0")
    for worker in ("c-0", "d-0"):
        assert run.feed(hello(worker)) == []
        run.feed(telemetry(worker))
    assert run.tick() == []
    assert list(run.kernel.fleet.row_of) == ["a-0", "b-0"]
    assert only(Notice, run.feed(hello("d-0"), after_s=60.0)).kind == "full"
    run.exit("a-0")
    assert only(Notice, run.feed(hello("a-0", incarnation=2))).kind == "hello"


def test_a_hello_of_an_earlier_incarnation_is_ignored():
    run = Run(make_kernel())
    run.feed(hello("a-0", incarnation=4))
    run.feed(hello("a-0", incarnation=5))
    assert run.feed(hello("a-0", incarnation=4, node="elsewhere")) == []
    assert run.kernel.fleet.hello[0].node == "node-a"


def test_a_hello_of_an_earlier_incarnation_neither_ends_nor_sends_a_command():
    run = Run(make_kernel())
    run.feed(hello("a-0", incarnation=4))
    run.feed(hello("a-0", incarnation=5))
    run.ask(ChangeKnob(knob="lr", value=0.5))
    assert run.feed(hello("a-0", incarnation=4)) == []
    (command,) = run.commands()
    assert run.kernel.commands.flights[command.id].status == "issued"


def test_a_new_incarnation_is_reported_and_ends_the_commands_of_the_one_before():
    run = three_groups(make_kernel())
    run.ask(SaveCheckpoint(group="a"))
    run.ask(CollectDump(worker="a-0"))
    outputs = run.feed(hello("a-0", incarnation=2))
    assert only(Notice, outputs).kind == "hello"
    assert [(status.status, status.detail) for status in of(CommandStatus, outputs)] == [
        ("expired", "the worker has restarted")
    ] * 2


def test_inputs_are_counted_from_one_as_in_the_trajectory_and_ticks_too():
    run = Run(make_kernel())
    assert (run.kernel.seq, run.kernel.ticks) == (1, 0)
    run.tick()
    run.tick()
    assert (run.kernel.seq, run.kernel.ticks) == (3, 2)


def test_a_sample_table_is_equal_to_telemetry_of_its_workers():
    seen = []
    policy = Calls(lambda view: seen.append(view.latest("heat").tolist()) or (), [Need("heat")])
    run = Run(make_kernel([active("calls", policy)]))
    run.feed(hello("a-0"))
    run.feed(hello("b-0"))
    table = SampleTable(("a-0", "b-0"), ("heat",), np.array([[7.0], [9.0]]))
    assert run.kernel.step(table, run.now_ns) == ()
    run.tick()
    assert seen == [[7.0, 9.0]]


def test_an_invalid_input_is_an_error_that_names_its_type():
    with pytest.raises(TypeError, match=r"^need a kernel input, was str$"):
        make_kernel().step("tick", 0)


def test_ids_have_a_prefix_for_the_kind_and_the_weavers_epoch():
    scripted = ScriptedPolicy()
    kernel = make_kernel([active("scripted", scripted)], predictors={"oracle": Oracle()})
    run = Run(kernel, epoch=3)
    scripted.next = [proposal(PauseRun())]
    outputs = run.tick()
    assert only(Proposed, outputs).id == "p3.1"
    assert only(ForecastWanted, outputs).id == "f3.2"


def test_a_predictor_is_called_at_its_interval_and_once_at_a_time():
    run = forecasting()
    wanted = only(ForecastWanted, run.tick())
    assert run.tick(10.0) == []
    run.feed(answer(wanted))
    assert only(ForecastWanted, run.tick()).id != wanted.id
    run.feed(answer(wanted))
    assert run.tick(1.0) == []
    assert len(run.tick(2.0)) == 1


def test_a_predictor_sees_the_fleet_at_the_tick_of_its_call():
    run = Run(make_kernel(predictors={"oracle": Needy()}))
    run.feed(hello("a-0"))
    run.report("a-0", metrics={"heat": 7.0})
    view = run.kernel.predictor_view("oracle")
    then_ns = run.now_ns
    run.report("a-0", metrics={"heat": 9.0})
    run.feed(hello("b-0"))
    assert view.now_ns == then_ns
    assert view.latest("heat").tolist() == [7.0]


def test_a_failed_predictor_is_reported_once_and_not_called_again():
    run = forecasting()
    run.tick()
    failed = PredictorFailed(predictor="oracle", rule="raised", detail="ValueError: no (o.py:3)")
    notice = only(Notice, run.feed(failed))
    assert notice.text == "predictor oracle is quarantined: raised: ValueError: no (o.py:3)"
    assert of(ForecastWanted, run.tick(100.0)) == []


def test_a_pause_that_was_applied_can_be_resumed_at_once():
    run = three_groups(make_kernel())
    run.ask(PauseRun())
    for command in run.commands():
        run.ack(command)
    assert only(Reply, run.ask(ResumeRun())).ok


def shown(run: Run) -> dict[str, float]:
    """Return the oracle's forecast as policies see it."""
    forecast = run.kernel.forecasts.newest.get("oracle")
    return forecast.hazard if forecast else {}


def judged(wanted: ForecastWanted) -> Forecast:
    return Forecast(
        id=wanted.id, predictor="oracle", horizon_s=60.0, hazard={"a-0": 0.5, "b-0": 0.4}
    )


def test_a_forecast_is_dropped_when_the_worker_moves():
    run = forecasting()
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker))
    run.feed(judged(only(ForecastWanted, run.tick())))
    run.feed(hello("a-0", incarnation=2))
    assert shown(run) == {"a-0": 0.5, "b-0": 0.4}
    run.feed(hello("a-0", incarnation=3, node="elsewhere"))
    assert shown(run) == {"b-0": 0.4}
    run.feed(judged(only(ForecastWanted, run.tick(5.0))))
    assert shown(run) == {"a-0": 0.5, "b-0": 0.4}


def test_a_forecast_requested_before_a_move_has_no_entry_of_the_worker():
    run = forecasting()
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker))
    wanted = only(ForecastWanted, run.tick())
    run.feed(hello("a-0", incarnation=2, node="elsewhere"))
    run.feed(judged(wanted))
    assert shown(run) == {"b-0": 0.4}


def test_what_the_weaver_itself_notices_is_on_record_as_other_notices():
    run = Run(make_kernel())
    (notice,) = run.feed(Noticed(kind="disk", text="the disk is nearly full"))
    assert notice == Notice(kind="disk", text="the disk is nearly full")
