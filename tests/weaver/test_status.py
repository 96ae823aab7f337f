"""The status of a run fits a message for any number of workers."""

import msgspec
import pytest

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    active,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import Need
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.live.weaver.status import describe, describe_knobs
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, encode
from torchloom_core.wire.decisions import ForecastWanted, Notice
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.limits import MAX_CHOICES, MAX_KNOBS
from torchloom_core.wire.messages import Exit, KnobSpec, Note
from torchloom_core.wire.operator import Page


def run_of(count: int) -> Run:
    run = Run(make_kernel())
    for number in range(count):
        run.feed(hello(f"g{number}-0"))
    run.ask(ChangeKnob(knob="lr", value=0.5))
    return run


def status(run, page=Page(), plugins=ActivePlugins()):  # noqa: B008 - they are frozen
    return describe(
        run.kernel,
        Config(),
        plugins,
        now_ns=run.now_ns,
        malformed=0,
        log="",
        page=page,
    )


class PolicyWithStatus:
    """A policy with a line of its own for people, or something odd in its place."""

    name = "reporter"
    needs = ()

    def __init__(self, status):
        self.status = status

    def on_tick(self, view):
        return ()


def test_a_policys_status_text_is_shown_and_other_types_are_not():
    for status_line, text in (("patience 40 s\n(3 x 10 s)", "patience 40 s (3 x 10 s)"), (7, "")):
        one = ActivePolicy("reporter", PolicyWithStatus(status_line))
        run = Run(make_kernel([one]))
        run.tick()
        shown = status(run, plugins=ActivePlugins((one,)))
        assert [(p.name, p.state, p.detail) for p in shown.plugins] == [("reporter", "act", text)]


class Needy:
    """A predictor that needs a metric."""

    every_s = horizon_s = 60.0
    needs = (Need("x"),)


def test_a_predictor_without_a_forecast_shows_which_metric_no_worker_reports():
    plugins = ActivePlugins((), {"needy": Needy()})
    run = Run(make_kernel(predictors=plugins.predictors))
    run.feed(hello("g0-0"))
    for reported, hazard, detail in (
        ({}, {}, "no forecast: no worker reports x"),
        ({"x": 1.0}, {}, "no forecast yet"),
        ({}, {"g0-0": 0.0}, ""),
    ):
        run.feed(telemetry("g0-0", reported))
        run.tick()
        run.feed(Forecast(id="f", predictor="needy", horizon_s=60.0, hazard=hazard))
        assert [one.detail for one in status(run, plugins=plugins).plugins] == [detail]


@pytest.mark.slow
def test_ten_thousand_workers_come_in_pages_each_of_which_fits_a_message():
    run = run_of(10_000)
    page = status(run)
    assert (len(page.flights), page.flights_in_all) == (1_000, 10_000)
    workers = []
    while True:
        assert len(encode(page)) < MAX_MESSAGE_BYTES
        workers += [row.worker for row in page.workers]
        if not page.more:
            break
        page = status(run, Page(after=workers[-1]))
        assert not page.flights
    assert workers == [f"g{number}-0" for number in range(10_000)]
    table = describe_knobs(run.kernel)
    values = {}
    while True:
        assert len(encode(table)) < MAX_MESSAGE_BYTES
        values |= table.values
        if not table.more:
            break
        table = describe_knobs(run.kernel, Page(after=list(values)[-1]))
    assert list(values) == workers


def test_each_knob_shows_whether_a_standby_can_preview_it():
    run = run_of(2)
    assert describe_knobs(run.kernel).tried == ()
    run.feed(hello("s0-0", state="standby", tries=("lr", "another")))
    assert describe_knobs(run.kernel).tried == ("lr",)
    run.feed(exit_of("s0-0", status=0, expected=True))
    assert describe_knobs(run.kernel).tried == ()


def test_the_status_can_be_read_without_the_workers():
    run = run_of(3)
    whole, lists = status(run), status(run, Page(workers=False))
    assert len(whole.workers) == 3
    assert lists == msgspec.structs.replace(whole, workers=())
    table = describe_knobs(run.kernel, Page(workers=False))
    assert table == msgspec.structs.replace(describe_knobs(run.kernel), values={})


def test_a_large_run_is_summarised_and_its_workers_can_be_selected():
    run = run_of(300)
    run.feed(Exit(run="run", worker="g7-0", incarnation=1, status=1, expected=False))
    summary = status(run, Page(summary=True))
    assert (summary.summary, summary.workers, len(summary.flights)) == (True, (), 20)
    assert summary.counts == {"trainer": {"training": 299, "failed": 1}}
    assert summary.groups == 299
    assert [row.worker for row in summary.unusual] == ["g7-0"]
    assert [row.worker for row in status(run, Page(state="failed")).workers] == ["g7-0"]
    assert [row.worker for row in status(run, Page(group="g9")).workers] == ["g9-0"]
    some = status(run, Page(limit=2, after="g6-0", state="training"))
    assert ([row.worker for row in some.workers], some.more) == (["g8-0", "g9-0"], True)


def test_a_small_run_is_not_summarised():
    few = status(run_of(3), Page(summary=True))
    assert (few.summary, len(few.workers)) == (False, 3)


def test_a_small_run_comes_in_one_page():
    page = status(run_of(3))
    assert not page.more
    assert len(page.workers) == len(page.flights) == page.flights_in_all == 3
    assert not describe_knobs(run_of(3).kernel).more


def test_a_page_after_an_unknown_worker_begins_at_the_start():
    run = run_of(3)
    assert status(run, Page(after="unknown")).workers == status(run).workers
    assert msgspec.structs.asdict(describe_knobs(run.kernel, Page(after="unknown")))["values"]


def exit_of(worker: str, status: int, expected: bool) -> Exit:
    return Exit(run="run", worker=worker, incarnation=1, status=status, expected=expected)


def endings(run: Run) -> dict[str, str]:
    return {row.worker: row.ending for row in status(run).workers}


def test_the_end_of_a_worker_is_shown_and_a_drain_is_no_kill():
    run = three_groups(make_kernel())
    assert set(endings(run).values()) == {""}
    run.ask(DrainGroup(group="a"))
    run.ack(run.commands()[-1])
    assert endings(run)["a-0"] == ""  # it has left, its process is there yet
    for worker, exit_status in (("a-0", 0), ("b-0", -9), ("c-0", 0)):
        run.feed(exit_of(worker, exit_status, expected=exit_status == 0))
    assert endings(run) == {"a-0": "drained", "b-0": "killed", "c-0": "finished", "s-0": ""}
    run.feed(hello("b-0", incarnation=2))
    assert endings(run)["b-0"] == ""


def test_a_drained_worker_whose_exit_came_before_its_ack_was_drained_too():
    run = three_groups(make_kernel())
    run.ask(DrainGroup(group="a"))
    run.feed(exit_of("a-0", 0, expected=True))
    assert endings(run)["a-0"] == "drained"


def test_a_worker_without_heartbeats_is_silent():
    run = three_groups(make_kernel(), standby=False)
    run.now_ns += 11 * 10**9
    run.report("b-0")
    assert endings(run) == {"a-0": "silent", "b-0": "", "c-0": "silent"}


def test_one_workers_knobs_do_not_crowd_out_the_runs():
    run = run_of(1)
    choices = tuple(f"{number}{'x' * 40}" for number in range(MAX_CHOICES))
    many = (KnobSpec(name=f"x.{n}", kind="choice", choices=choices) for n in range(MAX_KNOBS))
    run.feed(hello("g1-0", knobs=tuple(many), values={}))
    for worker in ("g2-0", "g3-0"):
        run.feed(hello(worker, knobs=(KnobSpec(name="batch", kind="int"),), values={"batch": 8}))
    assert "batch" in [spec.name for spec in describe_knobs(run.kernel).specs]


def test_large_knobs_do_not_crowd_out_the_others():
    run = run_of(1)
    choices = tuple(f"{number}{'x' * 40}" for number in range(MAX_CHOICES))
    for worker in ("g1", "g2"):
        specs = (
            KnobSpec(name=f"{worker}.{n}", kind="choice", choices=choices) for n in range(MAX_KNOBS)
        )
        run.feed(hello(f"{worker}-0", knobs=tuple(specs), values={}))
    table = describe_knobs(run.kernel)
    assert len(encode(table)) < MAX_MESSAGE_BYTES
    assert table.specs[0].name == "lr"
    assert len(table.specs) + table.left_out == 1 + 2 * MAX_KNOBS


class Oracle:
    name = "oracle"
    needs = ()
    horizon_s = 60.0
    every_s = 1.0


def test_a_hazard_is_shown_though_no_policy_reads_the_forecast():
    run = Run(make_kernel(predictors={"oracle": Oracle()}))
    run.feed(hello("g0-0"))
    (wanted,) = (o for o in run.tick() if isinstance(o, ForecastWanted))
    new = Forecast(id=wanted.id, predictor="oracle", horizon_s=60.0, hazard={"g0-0": 0.5})
    run.feed(new)
    (row,) = status(run).workers
    assert row.hazards == {"oracle": 0.5}


def test_the_lighthouses_view_is_shown_in_a_line():
    run = three_groups(make_kernel())
    assert status(run).lighthouse == ""
    run.feed(lighthouse_view(silent=("b:uuid",)))
    assert status(run).lighthouse == "quorum 7 of 3, silent: b"


def test_an_incarnation_followed_by_another_is_left_out():
    run = three_groups(make_kernel())
    for group in "abc":
        run.feed(in_quorum(f"{group}-0", 7))
    run.exit("b-0")
    members = ("a:uuid", "b:uuid", "c:uuid")
    run.feed(lighthouse_view(silent=("b:uuid", "c:uuid"), lost=("b:uuid",), aside=("b:uuid",)))
    assert status(run).lighthouse == "quorum 7 of 3, silent: c, lost: b"
    run.feed(in_quorum("b-0", 8, incarnation=2, replica_id="b:next"))
    gone = {"failed": ("b:uuid",), "silent": ("b:uuid",), "lost": ("b:uuid",)}
    run.feed(lighthouse_view(quorum_id=8, members=members, aside=("b:uuid", "x:uuid"), **gone))
    assert status(run).lighthouse == "quorum 8 of 3, aside: x"
    # For a group that is not attached the quorum shows that it is back.
    run.feed(lighthouse_view(quorum_id=9, members=("x:next",), aside=("x:uuid",)))
    assert status(run).lighthouse == "quorum 9 of 1"


def test_the_workers_at_highest_risk_are_shown_with_reasons():
    run = run_of(50)
    hazard = {f"g{number}-0": number / 100 for number in range(50)}
    wanted = [o for o in run.tick() if isinstance(o, ForecastWanted)]
    assert not wanted  # no predictor is active: the forecasts are fed in
    run.kernel.forecasts.newest["trend"] = Forecast(
        id="f1.1", predictor="trend", horizon_s=60.0, hazard=hazard, why={"g49-0": "it is hot"}
    )
    text = status(run, Page(workers=False)).at_risk
    assert [one.worker for one in text] == [f"g{number}-0" for number in range(49, 29, -1)]
    assert (text[0].hazard, text[0].horizon_s, text[0].why) == (0.49, 60.0, "it is hot")


def test_the_step_time_is_shown_once_a_worker_reports_it():
    run = three_groups(make_kernel())
    run.tick()
    assert status(run).step_time_s is None
    for worker, step_time_s in (("a-0", 0.1), ("b-0", 0.3), ("c-0", 9.0)):
        run.feed(telemetry(worker, {"step_time_s": step_time_s}))
    run.tick()
    assert status(run).step_time_s == 0.3


def test_a_pending_approval_shows_its_action_and_its_deadline():
    policy = ScriptedPolicy()
    text = "[arbiter.actions.migrate]\napproval = true"
    run = three_groups(make_kernel([active("reporter", policy)], text))
    policy.next = [proposal(Migrate(group="a"), expires_s=60.0)]
    run.tick()
    (waiting,) = status(run).waiting
    assert waiting.summary == "migrate group a"
    assert waiting.until_ns == run.now_ns + 60 * SECOND_NS


def test_crash_loops_are_shown_with_their_reason_until_a_rank_attaches():
    run = three_groups(make_kernel())
    run.exit("b-0")

    def note(**fields):
        message = Note(run="run", worker="b-0", incarnation=1, kind="restart", fields=fields)
        return of(Notice, run.feed(message))

    (text,) = note(restart=1, most=3, status=-11, lived_s=2.5, error="")
    assert text.text == (
        "crash-looping: 1 restart on node-b ended before they attached, the last was 1 of 3: "
        "signal 11 after 2.5 s, without a recorded error"
    )
    note(restart=2, most=3, status=1, error="RuntimeError: no\n  gloo")
    (loop,) = status(run).crash_loops
    assert (loop.failed, loop.error, loop.gave_up) == (2, "RuntimeError: no gloo", False)
    assert {w.worker: w.ending for w in status(run).workers}["b-0"] == "crash-looping"
    note(restart=2, most="x", status=1, error="RuntimeError", gave_up=True)
    (loop,) = status(run).crash_loops
    assert (loop.failed, loop.most, loop.gave_up) == (2, 0, True)
    run.tick(601.0)
    assert status(run).crash_loops == ()
    run.feed(hello("b-0", incarnation=2))
    assert not note(restart=3, most=3)  # of an incarnation that has ended
    assert status(run).crash_loops == ()
