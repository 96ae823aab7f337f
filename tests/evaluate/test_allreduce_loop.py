"""The kernel on simulated trainers: their reports, and changes of the mode."""

import itertools

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.simulate.links import write_links
from torchloom_core.config.evaluation import Allreduce, AllreduceMode
from torchloom_core.config.schema import Arbiter, Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.allreduce.run import workload_of
from torchloom_core.lab.evaluate.allreduce.simulated_trainers import SimulatedTrainers
from torchloom_core.lab.evaluate.closed_loop import ClosedLoop
from torchloom_core.lab.evaluate.goodput.episode import rng
from torchloom_core.lab.simulate.allreduce_run import AllreduceRun
from torchloom_core.lab.simulate.links import links_of
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.synthetic.trace import BandwidthParameters, synthesize_bandwidth
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.plugin import (
    ChangeKnob,
    ChangeKnobs,
    Guard,
    Need,
    PauseRun,
    ProbeLinks,
    Proposal,
)

NONE, INT8 = AllreduceMode(), AllreduceMode(compress_s=0.1)
JOB = Allreduce(
    gradient_bytes=12_000_000,
    compute_s=0.2,
    modes={"none": NONE, "int8": INT8},
    noise=0.0,
)
MBIT = 125_000.0
ALL = (
    "bucket_0_bytes", "bucket_0_compress_s", "bucket_0_wire_s", "compress_s", "compute_s",
    "gradient_bytes", "loss", "overlap_s", "reductions", "sent_bytes", "step_time_s", "wait_s",
    "wire_s",
)  # fmt: skip


class Scripted:
    """A policy whose proposals come from a function of the view."""

    name = "scripted"

    def __init__(self, wanted, needs=ALL):
        self._wanted = wanted
        self.needs = tuple(Need(metric) for metric in needs)

    def on_tick(self, view):
        for action in self._wanted(view):
            yield Proposal(action=action, reason="test", gain_gpu_s=1e6)


class BelowInt8:
    """Compress where the wire, as the last step measured it, carries less than a limit."""

    name = "below"
    needs = tuple(map(Need, ("sent_bytes", "wire_s")))

    def __init__(self, mbit_per_s):
        self._limit = mbit_per_s * MBIT

    def on_tick(self, view):
        rate = np.nanmax(view.latest("sent_bytes") / view.latest("wire_s"), initial=0.0)
        wanted = "int8" if rate < self._limit else "none"
        if rate and view.knob("compression") != [wanted] * len(view):
            action = ChangeKnobs(values={"compression": wanted})
            yield Proposal(action=action, reason=f"{rate:.3g} bytes/s", gain_gpu_s=1.0)


CONFIG = Config(arbiter=Arbiter(cooldown_s=0.0))


def drive(links, policy, job=JOB, config=CONFIG, seed=0, goal=300.0, limit_s=1e4):
    """Play a policy; return the loop, the trainers and their run."""
    ranks = len(links.workers)
    run = AllreduceRun(workload_of(job, ranks), links.bottleneck, rng(seed, "steps"))
    trainers = SimulatedTrainers(
        run,
        job,
        links,
        name="run",
        goal=goal,
        limit_s=limit_s,
        heartbeats=np.zeros(ranks),
        probing=rng(seed, "probes"),
    )
    plugins = ActivePlugins((ActivePolicy(policy.name, policy),))
    loop = ClosedLoop(trainers, config, plugins, start_ns=links.start_ns)
    loop.run()
    return loop, trainers, run


def once(action, tick):
    """Return what proposes an action at one tick, the first being 1."""
    ticks = itertools.count(1)
    return lambda view: [action] if next(ticks) == tick else []


def steady(path, mbit_per_s=1000.0, span_s=60.0):
    values = [(0.0, "w0", mbit_per_s * MBIT), (0.0, "w1", 2 * mbit_per_s * MBIT)]
    return links_of(write_links(path / "steady.tltrace", values, span_s=span_s))


SET_INT8 = ChangeKnobs(values={"compression": "int8"})
NONE_S = 0.2 + 12e6 / (1000 * MBIT)


# --- what they report ---


def test_a_policy_sees_what_live_ranks_report_of_a_step(tmp_path):
    job = msgspec.structs.replace(JOB, overlap=0.5, noise=0.05)
    seen = {}

    def look(view):
        seen.update({metric: view.latest(metric) for metric in ALL}, state=view.state)
        seen.update(step=view.step, knobs=view.knob("compression"))
        return []

    drive(steady(tmp_path), Scripted(look), job, goal=30.0)
    assert seen["state"] == ("training", "training")
    assert seen["knobs"] == ["none", "none"]
    assert (seen["step"] > 10).all()
    assert seen["gradient_bytes"].tolist() == seen["sent_bytes"].tolist() == [12e6, 12e6]
    assert seen["compute_s"] + seen["wait_s"] == pytest.approx(seen["step_time_s"])
    assert seen["wire_s"].min() == pytest.approx(12e6 / (1000 * MBIT), rel=0.2)
    assert seen["wire_s"].argmax() == seen["compute_s"].argmin()
    exposed_s = seen["step_time_s"].max() - seen["compute_s"].max() - seen["compress_s"].max()
    assert seen["overlap_s"] + exposed_s == pytest.approx(seen["wire_s"].min() * np.ones(2))
    assert seen["compress_s"].tolist() == [0.0, 0.0]
    assert 1.0 < seen["loss"][0] < 5.0


def test_nothing_is_seen_before_its_heartbeat(tmp_path):
    # Steps of 0.296 s end at .296, .592, .888, 1.184 ...; heartbeats come at whole 2 s.
    job = msgspec.structs.replace(JOB, heartbeat_s=2.0)
    seen = []

    def look(view):
        seen.append((int(view.step.max()), view.window("step_time_s", 1.0)[0, -1]))
        return []

    drive(steady(tmp_path), Scripted(look), job, goal=30.0)
    steps = [step for step, _ in seen]
    at = [int((tick // 2 * 2) / NONE_S) or -1 for tick in range(1, 9)]
    assert steps[:8] == at
    assert [np.isnan(value) for _, value in seen[:8]] == 4 * [True, False]


def test_a_step_longer_than_a_tick_is_reported_once(tmp_path):
    samples = []

    def look(view):
        samples.append(float(view.window("step_time_s", 1.0)[0, -1]))
        return []

    drive(steady(tmp_path, mbit_per_s=25.0), Scripted(look), goal=4.0)
    step_s = 0.2 + 12e6 / (25 * MBIT)
    values = [value for value in samples if not np.isnan(value)]
    assert values == pytest.approx([step_s] * 3)  # the run is over with the fourth
    assert len(samples) == int(4 * step_s)


# --- a change ---


def test_a_mode_changes_with_the_step_after_the_one_in_which_it_was_offered(tmp_path):
    for action in (SET_INT8, ChangeKnob(knob="compression", value="int8")):
        wanted = once(action, 3)
        _, trainers, run = drive(steady(tmp_path / type(action).__name__), Scripted(wanted))
        # Granted at 3 s, there at 4 s, in the 14th step: agreed on in the 15th.
        offered = int(4.0 / NONE_S) + 1
        assert [stretch.mode for stretch in run.stretches] == ["none", "int8"]
        assert run.stretches[1].begin_s == pytest.approx((offered + 1) * NONE_S)
        assert trainers.decisions == 1


def test_an_unknown_mode_is_rejected_with_a_reason(tmp_path):
    action = ChangeKnobs(values={"compression": "int9"})
    loop, _, run = drive(steady(tmp_path), Scripted(once(action, 3)))
    (verdict,) = [verdict for _, verdict in loop.verdicts]
    assert (verdict.granted, verdict.rule) == (False, "impossible")
    assert "knob compression: need one of none, int8, was 'int9'" in verdict.reason
    assert len(run.stretches) == 1


def test_what_the_trainers_cannot_do_is_refused_and_leaves_the_run_as_it_is(tmp_path):
    loop, _, run = drive(steady(tmp_path), Scripted(once(PauseRun(), 3)))
    alone = drive(steady(tmp_path / "2"), Scripted(lambda view: []))[2]
    assert run.now_s == alone.now_s
    assert [v.rule for _, v in loop.verdicts] == ["net_gain"]


def test_a_second_change_waits_for_the_first_and_lands_too(tmp_path):
    back = ChangeKnobs(values={"compression": "none"})
    ticks = itertools.count(1)
    proposals = {3: SET_INT8, 4: back}

    def wanted(view):
        return [proposals[tick]] if (tick := next(ticks)) in proposals else []

    _, _, run = drive(steady(tmp_path), Scripted(wanted))
    assert [stretch.mode for stretch in run.stretches] == ["none", "int8", "none"]


def test_an_offer_that_is_past_its_deadline_as_a_step_begins_never_lands(tmp_path):
    # Steps of 96.2 s; the offer of 4 s is good until 63 s.
    _, _, run = drive(steady(tmp_path, mbit_per_s=1.0), Scripted(once(SET_INT8, 3)), goal=6.0)
    assert [stretch.mode for stretch in run.stretches] == ["none"]
    patient = msgspec.structs.replace(CONFIG.weaver, command_deadline_s=120.0)
    config = msgspec.structs.replace(CONFIG, weaver=patient)
    links = steady(tmp_path / "2", mbit_per_s=1.0)
    _, _, run = drive(links, Scripted(once(SET_INT8, 3)), config=config, goal=6.0)
    assert [stretch.mode for stretch in run.stretches] == ["none", "int8"]


def test_a_guard_on_the_loss_has_something_to_watch_and_lets_a_harmless_mode_be(tmp_path):
    action = ChangeKnobs(values={"compression": "int8"}, guard=Guard(metric="loss", window_s=10.0))
    loop, _, run = drive(steady(tmp_path), Scripted(once(action, 20)))
    assert [verdict.granted for _, verdict in loop.verdicts] == [True]
    assert [stretch.mode for stretch in run.stretches] == ["none", "int8"]


# --- a probe ---


def uneven(path, change_s=5.0):
    """Return three links, the second of which is slower from a moment on."""
    values = [(0.0, f"w{row}", rate * MBIT) for row, rate in enumerate((1000.0, 500.0, 800.0))]
    values.append((change_s, "w1", 100.0 * MBIT))
    nodes = ("w0", "w1", "w2")
    return links_of(write_links(path / "x.tltrace", values, span_s=60.0, nodes=nodes))


def probe_at(tick, *pairs, probe_bytes=1 << 20):
    return once(ProbeLinks(pairs=pairs, probe_bytes=probe_bytes), tick)


def test_a_probe_measures_the_slower_of_the_two_links_as_it_is_at_that_moment(tmp_path):
    for tick, mbit in ((2, 500.0), (5, 100.0)):  # a command takes a second
        seen = []
        ask = probe_at(tick, ("w0", "w1"))

        def look(view, ask=ask, seen=seen):
            seen.append((view.can_be_probed.tolist(), view.links(range(3))))
            return ask(view)

        job = msgspec.structs.replace(JOB, latency_s=0.0003)
        drive(uneven(tmp_path / str(tick)), Scripted(look), job, goal=50.0)
        can_be_probed, links = seen[-1]
        assert can_be_probed == [True] * 3
        assert links.bytes_per_s[0, 1] == mbit * MBIT
        assert links.latency_s[0, 1] == 0.0003
        assert links.spread[0, 1] == 0.0
        assert np.isfinite(links.bytes_per_s).sum() == 1


def test_the_result_of_a_probe_arrives_at_its_end(tmp_path):
    known_at = {}
    for probe_bytes in (1 << 20, 8 << 20):  # of 50 Mbit/s: 0.17 and 1.34 s
        ask = probe_at(2, ("w0", "w1"), probe_bytes=probe_bytes)
        ticks = itertools.count(1)

        def look(view, ask=ask, ticks=ticks, probe_bytes=probe_bytes):
            tick = next(ticks)
            if np.isfinite(view.links((0, 1)).bytes_per_s[0, 1]):
                known_at.setdefault(probe_bytes, tick)
            return ask(view)

        drive(steady(tmp_path / str(probe_bytes), mbit_per_s=50.0), Scripted(look), goal=10.0)
    assert known_at == {1 << 20: 4, 8 << 20: 5}


def test_the_next_step_waits_for_what_is_probed_and_no_other_does(tmp_path):
    links = steady(tmp_path, mbit_per_s=200.0)
    quiet = drive(links, Scripted(lambda view: []), goal=50.0)[2]
    _, trainers, run = drive(links, Scripted(probe_at(5, ("w0", "w1"))), goal=50.0)
    assert run.now_s - quiet.now_s == pytest.approx((1 << 20) / (200 * MBIT))
    assert trainers.decisions == 0


def test_probes_of_several_links_at_once_cost_no_more_than_one(tmp_path):
    values = [(0.0, f"w{row}", 200.0 * MBIT) for row in range(4)]
    nodes = tuple(f"w{row}" for row in range(4))
    links = links_of(write_links(tmp_path / "x.tltrace", values, span_s=60.0, nodes=nodes))
    one, two = (
        drive(links, Scripted(probe_at(5, *pairs)), goal=50.0)[2].now_s
        for pairs in ([("w0", "w1")], [("w0", "w1"), ("w2", "w3")])
    )
    assert one == two


def test_a_run_is_given_up_after_its_time(tmp_path):
    _, _, run = drive(steady(tmp_path), Scripted(lambda view: []), goal=1e6, limit_s=20.0)
    assert run.now_s == pytest.approx(20.0, abs=NONE_S)
    assert run.steps == int(20.0 / NONE_S)


# --- nothing of the future reaches a decision ---


def changing(path):
    levels = BandwidthParameters(mbit_per_s=(1000.0, 100.0, 1000.0, 50.0), hold_s=30.0, jitter=0.1)
    synthesize_bandwidth(path / "x.tltrace", levels)
    return Bundle.open(path / "x.tltrace")


@pytest.mark.parametrize("after_s", [10.0, 45.5, 100.0])
def test_another_future_leaves_every_decision_before_it_the_same(tmp_path, after_s):
    bundle = changing(tmp_path)
    after_ns = bundle.manifest.start_ns + round(after_s * SECOND_NS)
    links = links_of(bundle)
    was = drive(links, BelowInt8(200.0))[0].verdicts
    now = drive(links_of(Slower(bundle, after_ns)), BelowInt8(200.0))[0].verdicts
    before = [until(one, after_ns) for one in (was, now)]
    assert before[0] == before[1]
    assert was != now
    assert before[0] or after_s == 10.0


def until(verdicts, ns):
    return [msgspec.json.encode(verdict) for ts_ns, verdict in verdicts if ts_ns <= ns]


class Slower(Bundle):
    """The same bundle with a tenth of the bandwidth from a given time on."""

    def __init__(self, bundle, after_ns):
        super().__init__(bundle.path, bundle.manifest)
        self._after_ns = after_ns

    def telemetry(self, start_ns=None, end_ns=None, metrics=None):
        for table in super().telemetry(start_ns, end_ns, metrics):
            late = table["t_avail"].to_numpy() > self._after_ns
            value = np.where(late, table["value"].to_numpy() / 10, table["value"].to_numpy())
            yield table.set_column(table.column_names.index("value"), "value", pa.array(value))
