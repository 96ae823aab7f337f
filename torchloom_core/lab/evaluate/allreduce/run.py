"""Play one run on a bandwidth trace: an arm under one seed.

The study plays a :class:`StudyTask` for every pair of arm and seed, in worker processes.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core.config.evaluation import Allreduce
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.allreduce.simulated_trainers import SimulatedTrainers
from torchloom_core.lab.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.closed_loop import ClosedLoop
from torchloom_core.lab.evaluate.goodput.episode import opened, rng
from torchloom_core.lab.evaluate.run_cache import key_of
from torchloom_core.lab.simulate.allreduce_run import AllreduceRun, Mode, Step, Workload
from torchloom_core.lab.simulate.links import Links, links_of
from torchloom_core.lab.trace.bundle.bundle import Look, look_of

_PATIENCE = 20.0
"""A run is stopped after this many times the time of the best static mode."""
_MOST_STEPS = 20_000_000
"""Maximum number of steps: one takes about 10 microseconds to simulate."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The required progress of a run, in steps of the mode ``none``, and its time limit."""

    progress: float
    limit_s: float


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all runs of a study share; policies and predictors come from the arms."""

    trace: str
    config: Config
    job: Allreduce
    config_path: str = "torchloom.toml"
    from_ns: int | None = None

    @property
    def links(self) -> Links:
        """The links of the trace; TraceError if they are invalid."""
        path = Path(self.trace)
        return _links(path, look_of(path), self.from_ns)

    def new_run(self, seed: int | None) -> AllreduceRun:
        """Return a new run, without noise if there is no seed."""
        links = self.links
        load = workload_of(self.job, len(links.workers), noise=seed is not None)
        return AllreduceRun(load, links.bottleneck, rng(seed or 0, "steps"))


@lru_cache(maxsize=4)
def _links(path: Path, _look: Look, from_ns: int | None) -> Links:
    return links_of(opened(path), from_ns)


def goal_of(setting: Setting) -> Goal:
    """Return the goal of all runs: the config's, or that of the best static mode in one pass.

    It is computed without noise, so that it is the same for all seeds. ConfigError if no mode
    finishes a step within the trace, or a mode needs too many steps.
    """
    span_s, modes = setting.links.bottleneck.span_s, setting.job.modes
    progress = setting.job.steps
    if progress is None:
        for mode in modes:
            _refuse_endless(setting, mode, _most_steps(setting, mode))
        progress = max(_progress_in(setting, mode, span_s) for mode in modes)
    if not progress:
        raise ConfigError(
            f"{setting.trace}: need a trace longer than one step, was {span_s:g} s: use a longer "
            f"trace, or set steps in [evaluate.allreduce]"
        )
    for mode in modes:
        _refuse_endless(setting, mode, progress / modes[mode].quality)
    takes_s = float("inf")
    for mode in modes:
        run = setting.new_run(None)
        _play(run, partial(run.step, mode), Goal(progress=progress, limit_s=takes_s))
        takes_s = min(takes_s, run.now_s)
    return Goal(progress=progress, limit_s=_PATIENCE * takes_s)


def _most_steps(setting: Setting, mode: str) -> float:
    """Return the maximum number of steps of a mode in the trace, by time and by bytes."""
    wire, load = setting.links.bottleneck, setting.new_run(None).workload
    chosen = load.modes[mode]
    least_s = load.compute_s + chosen.compress_s + (1.0 - load.overlap) * load.latency_s
    share = max(least_s / wire.span_s, chosen.link_bytes / wire.in_all)
    return 1.0 / share if share > 0 else float("inf")


def _refuse_endless(setting: Setting, mode: str, steps: float) -> None:
    if steps > _MOST_STEPS:
        raise ConfigError(
            f"{setting.config_path}: evaluate.allreduce: need at most {_MOST_STEPS:,} steps, "
            f"was {steps:.3g} with {mode}: raise compute_s, shorten the trace or lower steps"
        )


def _progress_in(setting: Setting, mode: str, span_s: float) -> float:
    """Return the progress of a mode within a time span, in whole steps."""
    run = setting.new_run(None)
    while (step := run.step(mode)).end_s <= span_s:
        run.finish(step)
    return run.progress


def _play(run: AllreduceRun, choose: Callable[[], Step], goal: Goal) -> None:
    """Step until the goal or the time limit is reached."""
    while run.progress < goal.progress and run.now_s < goal.limit_s:
        run.finish(choose())


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """One run to play."""

    setting: Setting
    goal: Goal
    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        """The hash of trace, job, goal, safety limits, arm, seed, models and code."""
        setting, config = self.setting, self.setting.config
        parts = [
            opened(Path(setting.trace)).digest(),
            [config.run, config.weaver, config.costs, config.arbiter, config.guard],
            [config.evaluate.command_s, config.evaluate.forecast_s],
            [setting.job, setting.from_ns, self.goal],
            replace(self.arm, name="", what=""),
            self.seed,
        ]
        return key_of(parts, self.arm.predictors)

    def play(self) -> AllreduceRunResult:
        """Play it; ConfigError if the arm's config is wrong, TraceError if the trace is invalid."""
        run = self.setting.new_run(self.seed)
        if self.arm.policies:
            return self._play_closed_loop(run)
        mode = self.arm.mode
        _play(run, partial(run.step, mode) if mode else run.best, self.goal)
        return self._result(run)

    def _play_closed_loop(self, run: AllreduceRun) -> AllreduceRunResult:
        setting, links = self.setting, self.setting.links
        config = kernel_config(setting.config, self.arm)
        plugins = activate(config, installed(), setting.config_path)
        trainers = SimulatedTrainers(
            run,
            setting.job,
            links,
            name=config.run.name,
            goal=self.goal.progress,
            limit_s=self.goal.limit_s,
            heartbeats=rng(self.seed, "heartbeats").random(len(links.workers)),
            probing=rng(self.seed, "probes"),
        )
        loop = ClosedLoop(trainers, config, plugins, start_ns=links.start_ns)
        loop.run()
        return replace(
            self._result(run),
            decisions=trainers.decisions,
            operations=loop.operations,
            quarantined=loop.quarantined,
            silent=loop.silent,
        )

    def _result(self, run: AllreduceRun) -> AllreduceRunResult:
        is_there = run.progress >= self.goal.progress
        return AllreduceRunResult(
            arm=self.arm.name,
            seed=self.seed,
            time_s=run.now_s if is_there else None,
            wall_s=run.now_s,
            progress=run.progress,
            steps=run.steps,
            switches=len(run.stretches) - 1,
            in_mode={mode: time_s / run.now_s for mode, time_s in run.in_mode_s.items()},
            modes=tuple((stretch.begin_s, stretch.mode) for stretch in run.stretches),
            curve=(*run.curve, (run.now_s, run.progress)),
        )


def kernel_config(config: Config, arm: Arm) -> Config:
    """Return the kernel's config for an arm: the live one, with the arm's plugins."""
    weaver = replace(config.weaver, show=())
    return arm.activated(replace(config, weaver=weaver))


_TOPK_SHARE = 0.01
"""Default share of values that a CompressedProcessGroup sends with top-k."""

SENT: dict[str, Callable[[int], float]] = {
    "none": lambda ranks: 1.0,
    "bf16": lambda ranks: 0.5,
    "fp16": lambda ranks: 0.501,
    "int8": lambda ranks: 0.254,
    # An allgather: (n - 1) 6 share N bytes, where none sends 2 (n - 1)/n 4 N.
    "topk": lambda ranks: 0.75 * _TOPK_SHARE * ranks,
}
"""Mode to the bytes that a rank sends of a float32 gradient, relative to ``none``, as a function of
the number of ranks; see docs/compression.md."""


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank of a ring sends to reduce a payload."""
    return 2.0 * (ranks - 1) / ranks * payload_bytes


def workload_of(job: Allreduce, ranks: int, *, noise: bool = True) -> Workload:
    """Return the workload for a ring of ``ranks``, with ``2 (ranks - 1)`` hops."""
    plain = ring_bytes(job.gradient_bytes, ranks)
    modes = {
        name: Mode(
            sent_bytes=plain * (SENT[name](ranks) if mode.sent is None else mode.sent),
            compress_s=mode.compress_s,
            quality=mode.quality,
            link_use=mode.link_use,
        )
        for name, mode in job.modes.items()
    }
    return Workload(
        ranks=ranks,
        compute_s=job.compute_s,
        overlap=job.overlap,
        latency_s=2 * (ranks - 1) * job.latency_s,
        noise=job.noise if noise else 0.0,
        gradient_bytes=job.gradient_bytes,
        modes=modes,
    )
