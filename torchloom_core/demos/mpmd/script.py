"""What runs in the demo, and which workers are killed."""

from dataclasses import dataclass, field, replace

from torchloom_core.demos.scenario import Place, Training


@dataclass(frozen=True)
class Kill:
    """A worker is killed once the others have committed a step."""

    worker: str
    step: int


@dataclass(frozen=True)
class Part(Training):
    """A program on workers ``w0``, ``w1`` and so on, of which some stand by.

    Attributes
    ----------
    name : str
        Of its folder.
    options : tuple of str
        Of the trainers.
    """

    name: str = "pipeline"
    steps: int = 120
    step_ms: float = 40.0
    standbys: int = 0
    kills: tuple[Kill, ...] = field(default=())
    options: tuple[str, ...] = ("--program=stages",)

    @property
    def workers(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(place.group for place in self.places)


def _places(count: int) -> tuple[Place, ...]:
    return tuple(Place(f"w{number}", f"node-{number}", "rack-0") for number in range(count))


PIPELINE = Part(places=_places(7), standbys=1, kills=(Kill("w1", 35), Kill("w3", 75)))
"""Two replicas of three stages, and a standby: a worker of each replica is killed."""

_EXPERTS = Part(places=_places(4), kills=(Kill("w2", 100),), steps=160, step_ms=10.0)
_PROGRAM = "--program=experts"
EXPERTS = (
    replace(_EXPERTS, name="left out", options=(_PROGRAM,)),
    replace(_EXPERTS, name="peer's memory", options=(_PROGRAM, "--mirror-every=5")),
    replace(_EXPERTS, name="replica", options=(_PROGRAM, "--copies=2")),
)
"""Eight experts on four workers, of which one is killed: once for each answer."""
