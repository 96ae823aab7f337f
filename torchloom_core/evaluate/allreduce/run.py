"""One run on a bandwidth trace: an arm under one seed, from the trace to what it came to.

The study has :class:`StudyTask` played for every pair, in whatever process.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core.activation.activation import activate
from torchloom_core.config.schema import Allreduce, Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate.allreduce.arms import Arm
from torchloom_core.evaluate.allreduce.simulated_trainers import SimulatedTrainers
from torchloom_core.evaluate.allreduce.workload import workload_of
from torchloom_core.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.evaluate.closed_loop import ClosedLoop
from torchloom_core.evaluate.goodput.episode import opened, rng
from torchloom_core.evaluate.installed import installed
from torchloom_core.evaluate.run_cache import key_of
from torchloom_core.simulate.allreduce_run import AllreduceRun, Step
from torchloom_core.simulate.links import Links, links_of
from torchloom_core.trace.bundle.bundle import Look, look_of

_PATIENCE = 20.0
"""A run is given up after so many times as long as the best static mode takes."""
_MOST_STEPS = 20_000_000
"""On the trace, or to the goal: one takes some 10 microseconds to simulate."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is for, and when it is given up.

    Attributes
    ----------
    progress : float
        In steps of ``none``.
    limit_s : float
        Seconds.
    """

    progress: float
    limit_s: float


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a study have in common.

    Attributes
    ----------
    config : Config
        The rails; policies and predictors are the arms'.
    job : Allreduce
        What is simulated: ``[evaluate.allreduce]``.
    from_ns : int, optional
        Nothing before it is played.
    """

    trace: str
    config: Config
    job: Allreduce
    config_path: str = "torchloom.toml"
    from_ns: int | None = None

    @property
    def links(self) -> Links:
        """The links of the trace; TraceError if they are of no use."""
        path = Path(self.trace)
        return _links(path, look_of(path), self.from_ns)

    def new_run(self, seed: int | None) -> AllreduceRun:
        """Return a run that has yet to begin, without a seed one without noise."""
        links = self.links
        load = workload_of(self.job, len(links.workers), noise=seed is not None)
        return AllreduceRun(load, links.bottleneck, rng(seed or 0, "steps"))


@lru_cache(maxsize=4)
def _links(path: Path, _look: Look, from_ns: int | None) -> Links:
    return links_of(opened(path)[0], from_ns)


def goal_of(setting: Setting) -> Goal:
    """Return how far all runs go: as the config says, or as the best static mode in one pass.

    It is found without noise, so it is the same for all seeds.

    Raises
    ------
    ConfigError
        If no mode ends a step in the time of the trace, or one takes more steps than can be
        simulated in a time that is worth it.
    """
    span_s, modes = setting.links.bottleneck.span_s, setting.job.modes
    wanted = setting.job.steps
    if wanted is None:
        for mode in modes:
            _refuse_endless(setting, mode, _most_steps(setting, mode))
        wanted = max(_progress_in(setting, mode, span_s) for mode in modes)
    if not wanted:
        raise ConfigError(
            f"{setting.trace}: need a trace in which a step ends, was {span_s:g} s: more time, or "
            f"steps in [evaluate.allreduce]"
        )
    for mode in modes:
        _refuse_endless(setting, mode, wanted / modes[mode].quality)
    takes_s = float("inf")
    for mode in modes:
        run = setting.new_run(None)
        _play(run, partial(run.step, mode), Goal(progress=wanted, limit_s=takes_s))
        takes_s = min(takes_s, run.now_s)
    return Goal(progress=wanted, limit_s=_PATIENCE * takes_s)


def _most_steps(setting: Setting, mode: str) -> float:
    """Return what a mode can make of the trace at the most, by its time and by its bytes."""
    wire, load = setting.links.bottleneck, setting.new_run(None).workload
    chosen = load.modes[mode]
    least_s = load.compute_s + chosen.compress_s + (1.0 - load.overlap) * load.latency_s
    share = max(least_s / wire.span_s, chosen.link_bytes / wire.in_all)
    return 1.0 / share if share > 0 else float("inf")


def _refuse_endless(setting: Setting, mode: str, steps: float) -> None:
    if steps > _MOST_STEPS:
        raise ConfigError(
            f"{setting.config_path}: evaluate.allreduce: need at most {_MOST_STEPS:,} steps, "
            f"was {steps:.3g} of {mode}: a longer compute_s, a shorter trace or fewer steps"
        )


def _progress_in(setting: Setting, mode: str, span_s: float) -> float:
    """Return what a mode makes in so many seconds, in whole steps."""
    run = setting.new_run(None)
    while (step := run.step(mode)).end_s <= span_s:
        run.finish(step)
    return run.progress


def _play(run: AllreduceRun, choose: Callable[[], Step], goal: Goal) -> None:
    """Step until the goal is reached or the run is given up."""
    while run.progress < goal.progress and run.now_s < goal.limit_s:
        run.finish(choose())


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """One run that is to be played."""

    setting: Setting
    goal: Goal
    arm: Arm
    seed: int

    @property
    def arm_name(self) -> str:
        """The name of the arm."""
        return self.arm.name

    @property
    def key(self) -> str:
        """The hash of trace, job, goal, rails, arm, seed, models and code."""
        setting, config = self.setting, self.setting.config
        parts = [
            opened(Path(setting.trace))[0].digest(),
            [config.run, config.weaver, config.costs, config.arbiter, config.guard],
            [config.evaluate.command_s, config.evaluate.forecast_s],
            [setting.job, setting.from_ns, self.goal],
            replace(self.arm, name="", what=""),
            self.seed,
        ]
        return key_of(parts, self.arm.predictors)

    def play(self) -> AllreduceRunResult:
        """Play it.

        Raises
        ------
        ConfigError
            If the arm's config is wrong.
        TraceError
            If the trace has no use.
        """
        run = self.setting.new_run(self.seed)
        if self.arm.policies:
            return self._watched(run)
        mode = self.arm.mode
        _play(run, partial(run.step, mode) if mode else run.best, self.goal)
        return self._result(run)

    def _watched(self, run: AllreduceRun) -> AllreduceRunResult:
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
            operations=loop.verdict_counts.operations(),
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
            in_mode={mode: spent_s / run.now_s for mode, spent_s in run.in_mode_s.items()},
            modes=tuple((stretch.begin_s, stretch.mode) for stretch in run.stretches),
            curve=(*run.curve, (run.now_s, run.progress)),
        )


def kernel_config(config: Config, arm: Arm) -> Config:
    """Return the config that the kernel of an arm gets: as live, its plugins being the arm's."""
    weaver = replace(config.weaver, show=())
    return replace(config, weaver=weaver, policies=arm.policies, predictors=arm.predictors)
