"""Play runs in parallel: on the cores of this machine, or on a Ray cluster."""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from torchloom_core.floor.errors import ConfigError, WorkerLost
from torchloom_core.lab.evaluate.arm import Arm

Backend = Literal["loky", "ray"]

_RETRIES = 10
"""How often a run is played again whose process, or whose host, was lost on a Ray cluster."""

_ORPHANED_S = 1.0
"""How long a worker process may outlive its parent, seconds."""


Played = TypeVar("Played")
_Played_co = TypeVar("_Played_co", covariant=True)


class StudyTask(Protocol[_Played_co]):
    """One run to play, as it is sent to a worker process."""

    @property
    def seed(self) -> int:
        """The seed of its random draws."""

    @property
    def arm(self) -> Arm:
        """Its arm."""

    @property
    def key(self) -> str:
        """A hash of everything that the run depends on."""

    def play(self) -> _Played_co:
        """Play it."""


class Workforce(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that play the runs: ``jobs`` in parallel; -1: one per core.

    ``ray_address`` is that of a running cluster; "": start one on this machine. The trace must be
    at the same path on all machines.
    """

    jobs: int = 1
    backend: Backend = "loky"
    ray_address: str = ""

    def __post_init__(self) -> None:
        if self.jobs < 1 and self.jobs != -1:
            raise ConfigError(f"--jobs: need at least 1, or -1, was {self.jobs}")

    def play(
        self, study_tasks: Sequence[StudyTask[Played]]
    ) -> Iterator[tuple[StudyTask[Played], Played]]:
        """Yield every run as soon as it is finished, in any order.

        Runs are started seed by seed: a process draws an episode once for all arms, and after the
        first seed the duration of every arm is known. WorkerLost if a process of this machine dies,
        or one of a cluster again and again.
        """
        import joblib

        study_tasks = sorted(study_tasks, key=lambda study_task: study_task.seed)
        if self.backend == "loky":
            # joblib replaces a worker process whose memory has grown, between two runs.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            # On an interrupt the command itself reports which runs are saved.
            warnings.filterwarnings("ignore", r"\d+ tasks (have been|which were)", UserWarning)
            work = joblib.Parallel(
                n_jobs=self.jobs,
                return_as="generator_unordered",
                initializer=_begin,
                initargs=(os.getpid(),),
            )
            with _blocked(signal.SIGHUP):  # joblib's resource tracker ignores the other signals
                runs = work(joblib.delayed(_play)(study_task) for study_task in study_tasks)
            try:
                yield from runs
            except BrokenProcessPool:
                raise WorkerLost("a worker process died: killed, or out of memory") from None
            return
        yield from self._play_on_ray(study_tasks)

    def _play_on_ray(
        self, study_tasks: Sequence[StudyTask[Played]]
    ) -> Iterator[tuple[StudyTask[Played], Played]]:
        """Do the same on a cluster, which plays a run again if its process or host is lost."""
        import ray

        jobs = self._join_ray()
        play = ray.remote(_play).options(max_retries=_RETRIES)
        left, running = iter(study_tasks), list[Any]()
        while True:
            running += map(play.remote, islice(left, jobs - len(running)))
            if not running:
                return
            finished, running = ray.wait(running)
            try:
                yield from map(ray.get, finished)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                text = f"a run lost its process {_RETRIES + 1} times: killed, or out of memory"
                raise WorkerLost(text) from error

    def _join_ray(self) -> int:
        """Join the cluster, or start one; return how many processes to use."""
        import ray

        if not ray.is_initialized():
            ray.init(
                address=self.ray_address or None,
                num_cpus=self.jobs if self.jobs > 0 and not self.ray_address else None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        return self.jobs if self.jobs > 0 else int(ray.cluster_resources()["CPU"])


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Defer a signal, and block it for good in processes that are started meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _begin(parent: int) -> None:
    """Ignore SIGINT, which a terminal sends to the parent as well; end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone; a killed parent sends no signal."""
    while os.getppid() == parent:
        time.sleep(_ORPHANED_S)
    os._exit(1)


def _play(study_task: StudyTask[Played]) -> tuple[StudyTask[Played], Played]:
    return study_task, study_task.play()
