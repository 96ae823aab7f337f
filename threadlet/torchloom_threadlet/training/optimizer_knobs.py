"""The settings of optimizers as knobs: learning rate, betas, momentum, weight decay.

For code that registers knobs (``Loom.optimizer``, an adapter, a script)::

    for setting in settings(optimizer, scheduler):
        setting.register(loom, fence="run")

A setting reads and writes the parameter groups only, and stores nothing beside them: they are
healed with the optimizer's state, so a joiner has the same values as the others.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

_logger = logging.getLogger(__name__)

_HIGHEST_LR = 100.0
"""Above any useful learning rate; a typing error is refused instead of tried."""
_HIGHEST_SCALED = 10.0
"""How far above the schedule's highest rate, or the rate that is set, its highest may be scaled."""
_HIGHEST_BETA = 0.999_999
_HIGHEST_WEIGHT_DECAY = 10.0
_SCHEDULED = ("initial_lr", "max_lr", "min_lr")
"""The keys of a group from which schedulers compute its learning rate."""


class Setting(NamedTuple):
    """One knob: the arguments of :meth:`torchloom_threadlet.loom.Loom.knob`."""

    name: str
    get: Callable[[], float | None]
    set: Callable[[float], None]
    low: float
    high: float
    doc: str
    check: Callable[[float], None] | None = None

    def register(self, loom: Any, *, fence: Literal["worker", "run"] = "run") -> None:
        """Register this knob."""
        form = self._asdict()
        if check := self.check:
            form["check"] = lambda values: check(values[self.name])
        loom.knob(**form, kind="float", fence=fence)


class Managed(NamedTuple):
    """An optimizer without its wrappers, its scheduler, and what its knobs' names begin with."""

    optimizer: Any
    scheduler: Any
    prefix: str

    def within(self, loom: Any) -> Any:
        """Return ``loom.knob`` with the prefix before the name of each knob."""

        def knob(name: str, *arguments: Any, **form: Any) -> None:
            if check := form.get("check"):
                form["check"] = lambda values: check({name: values[self.prefix + name]})
            loom.knob(self.prefix + name, *arguments, **form)

        return SimpleNamespace(knob=knob)

    def register(self, loom: Any, *, can_vote: bool) -> None:
        """Register the settings, to change on all ranks at one step if the ranks can vote."""
        for setting in settings(self.optimizer, self.scheduler):
            setting.register(self.within(loom), fence="run" if can_vote else "worker")


def managed(parts: Iterable[Any]) -> list[Managed]:
    """Return the optimizers among the arguments of ``manage``, with the prefixes of their names.

    The first optimizer's is empty, the second's ``opt2.``. A scheduler belongs to its own
    optimizer, and one that does not name it to the optimizer before it. Anything else is left out
    with a warning.
    """
    found: list[Managed] = []
    for part in parts:
        if hasattr(part, "zero_grad") and hasattr(part, "step"):
            prefix = f"opt{len(found) + 1}." if found else ""
            found.append(Managed(unwrapped(part), None, prefix))
            continue
        part = _unwrapped_scheduler(part)
        own, last = unwrapped(getattr(part, "optimizer", None)), len(found) - 1
        place = next((p for p, each in enumerate(found) if each.optimizer is own), last)
        if found and hasattr(part, "step"):
            found[place] = found[place]._replace(scheduler=part)
        else:
            kind = type(part).__name__
            _logger.warning("manage: need optimizers and their schedulers, was %s", kind)
    return found


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that holds the parameter groups, such as torchft's wrapper's."""
    while optimizer is not None and "param_groups" not in vars(optimizer):
        inner = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if inner is None:
            break
        optimizer = inner
    return optimizer


def _unwrapped_scheduler(scheduler: Any) -> Any:
    """Return the scheduler that holds the rates, such as the one within accelerate's wrapper."""
    while not hasattr(scheduler, "optimizer") and hasattr(scheduler, "scheduler"):
        scheduler = scheduler.scheduler
    return scheduler


def settings(optimizer: Any, scheduler: Any = None) -> list[Setting]:
    """Return the settings of an optimizer that may change while it runs.

    Parameter groups keep their ratios: ``lr`` and ``weight_decay`` are those of the first
    group in which they are not 0, and the others are scaled with it; a 0 (the decay of
    biases, the rate of a frozen layer) stays 0. If it is 0 in all groups, all get the same value,
    or their ratios from before the knob set them to 0. Betas and momentum are the same in all.

    ``optimizer``: any, also torchft's wrapper.
    ``scheduler``: its whole schedule is scaled with ``lr``: the rate is what was set, and continues
    from there. A scheduler that is not passed, and computes the rate from its own base (LambdaLR),
    undoes the change at its next step, which is warned of once.
    """
    inner = unwrapped(optimizer)
    rate = _Rate(inner, scheduler)
    found = [
        Setting(
            "lr",
            rate.get,
            rate.set,
            0.0,  # a warm-up may begin there
            _HIGHEST_LR,
            "learning rate of the first parameter group; the others keep their ratio to it",
            rate.check,
        )
    ]
    for name, key, place in (
        ("beta1", "betas", 0),
        ("beta2", "betas", 1),
        ("momentum", "momentum", None),
    ):
        coefficient = _Coefficient(inner, name, key, place)
        if coefficient.get() is not None or hasattr(inner, "switch"):
            doc = f"{name} of all parameter groups that have it"
            found.append(Setting(name, coefficient.get, coefficient.set, 0.0, _HIGHEST_BETA, doc))
    if any("weight_decay" in group for group in inner.param_groups):
        found.append(
            Setting(
                "weight_decay",
                lambda: _reference(inner.param_groups, "weight_decay"),
                lambda value: _scale(inner.param_groups, "weight_decay", value),
                0.0,
                _HIGHEST_WEIGHT_DECAY,
                "weight decay of the first group that has any; the others keep their ratio to it",
            )
        )
    return found


class _Rate:
    """The learning rate, and whether it keeps the value that was set."""

    def __init__(self, optimizer: Any, scheduler: Any) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._set: list[float] = []
        self._set_in: Any = None
        self._warned = False
        if scheduler is None:
            optimizer.register_step_pre_hook(self._look)

    def get(self) -> float:
        return _reference(self._optimizer.param_groups, "lr")

    def set(self, value: float) -> None:
        groups = self._optimizer.param_groups
        if self._scheduler is None:
            _scale(groups, "lr", value)
            self._set, self._set_in = [float(group["lr"]) for group in groups], groups
            return
        if value <= 0:
            raise ValueError(f"need a learning rate > 0 to scale a schedule, was {value}")
        before = self.get() or _reference(groups, "initial_lr")
        if not before:
            raise ValueError("need a schedule that is not 0 everywhere to scale it")
        _scale_schedule(self._scheduler, groups, value / before)
        if self.get():
            _scale(groups, "lr", value)  # exact, without a rounding error

    def check(self, value: float) -> None:
        """Refuse a rate that would scale the schedule's highest far above all in use.

        Near a schedule's end, or in a warm-up, any usual rate is many times the present one.
        """
        groups = self._optimizer.param_groups
        present = self.get()
        if self._scheduler is None or not present:
            return
        highest = max(_reference(groups, key) for key in ("lr", "initial_lr", "max_lr"))
        scaled = highest * value / present
        if scaled > _HIGHEST_SCALED * max(value, highest):
            raise ValueError(
                f"the schedule is at {present:.3g} of {highest:.3g}: {value:g} now would scale its "
                f"highest rate to {scaled:.3g}: need at most {present * _HIGHEST_SCALED:.3g}"
            )

    def _look(self, optimizer: Any, args: object, kwargs: object) -> None:
        # Other groups come from a state that was loaded, or from another optimizer.
        if self._warned or self._set_in is not optimizer.param_groups:
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if rates[: len(self._set)] != self._set:
            self._warned = True
            _logger.warning(
                "lr was set to %s, but something else has set it to %s since: pass the scheduler "
                "with scheduler=",
                self._set[0],
                rates[0],
            )


class _Coefficient:
    """A beta or the momentum: the same in all groups that have it."""

    def __init__(self, optimizer: Any, name: str, key: str, place: int | None) -> None:
        self._optimizer, self._name, self._key, self._place = optimizer, name, key, place

    def get(self) -> float | None:
        for group in self._groups():
            value = group[self._key]
            return float(value if self._place is None else value[self._place])
        return None

    def set(self, value: float) -> None:
        groups = list(self._groups())
        if not groups:
            raise ValueError(f"the optimizer has no {self._name}")
        for group in groups:
            if self._place is None:
                group[self._key] = value
            else:
                betas = list(group[self._key])
                betas[self._place] = value
                group[self._key] = tuple(betas)

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for group in self._optimizer.param_groups if self._key in group)


def _reference(groups: Sequence[dict[str, Any]], key: str) -> float:
    return next((float(group[key]) for group in groups if float(group.get(key, 0.0)) > 0), 0.0)


def _scale(groups: Sequence[dict[str, Any]], key: str, value: float) -> None:
    """Set ``key`` so that the groups keep their ratios, also across a time at 0."""
    before, ratio_key = _reference(groups, key), f"{key}_ratio"
    for group in groups:
        if key in group:
            ratio = float(group[key]) / before if before else group.get(ratio_key, 1.0)
            if not value:
                group[ratio_key] = ratio
            _put(group, key, value * ratio)


def _scale_schedule(scheduler: Any, groups: Sequence[dict[str, Any]], factor: float) -> None:
    for group in groups:
        for key in ("lr", *_SCHEDULED):
            if key in group:
                _put(group, key, float(group[key]) * factor)
    for part in _with_parts(scheduler):
        for name in ("base_lrs", "max_lrs", "_last_lr", "min_lrs", "delta_lrs", "org_lrs"):
            if isinstance(rates := getattr(part, name, None), list):
                setattr(part, name, [float(rate) * factor for rate in rates])
        if isinstance(lowest := getattr(part, "eta_min", None), float):
            part.eta_min = lowest * factor


def _with_parts(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and the parts of a SequentialLR or ChainedScheduler."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)


def _put(group: dict[str, Any], key: str, value: float) -> None:
    if hasattr(group[key], "fill_"):  # a capturable optimizer's, to which a CUDA graph refers
        group[key].fill_(value)
    else:
        group[key] = value
