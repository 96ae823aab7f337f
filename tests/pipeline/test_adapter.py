"""A worker of a pipeline reports its part to the Weaver."""

from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_threadlet.identity import identify
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.pipeline.adapter import PipelineAdapter


def assignment(generation, *workers):
    route = tuple(Stage(name, n, n + 1) for n, name in enumerate(workers))
    return Assignment(generation=generation, layers=len(workers), routes=(route,))


def test_a_worker_without_a_part_waits_to_join_and_trains_again_with_its_next_step():
    adapter = PipelineAdapter()
    loom = Loom(identify({}, group="w1", rank=0), None, adapter)
    adapter.place(assignment(1, "w0", "w1"), "w1")
    loom.step(0)
    assert (loom.state, adapter.worker.identity.placement.stage) == ("training", 1)
    adapter.place(assignment(2, "w0"), "w1")
    assert loom.state == "joining"
    adapter.place(assignment(3, "w1"), "w1")
    loom.step(5)
    assert (loom.state, adapter.worker.identity.placement.stage) == ("training", 0)


def test_a_joiner_reports_the_rate_that_was_set_and_not_where_the_schedule_is():
    adapters, rates = [], [0.01, 0.01]
    for number in range(2):
        adapter = PipelineAdapter()
        loom = Loom(identify({}, group=f"w{number}", rank=0), None, adapter)

        def set_rate(value, number=number):
            rates[number] = value

        loom.knob("lr", lambda number=number: rates[number], set_rate, fence="run")
        adapters.append(adapter)
    adapters[0].worker.actuators.set_knob("lr", 0.005)
    rates[0] = 0.002
    adapters[1].take_over(adapters[0].standing())
    assert rates[1] == 0.002
    assert adapters[1].worker.actuators.values == {"lr": 0.005}
