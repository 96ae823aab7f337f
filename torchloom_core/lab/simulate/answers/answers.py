"""All implementations of actions on the fleet model, by kind of action."""

from collections.abc import Mapping

from torchloom_core.lab.simulate.answers import (
    admit,
    alert,
    checkpoint,
    cordon,
    drain,
    dump,
    evict,
    knob,
    knobs,
    landscape,
    migrate,
    pause,
    preview,
    probe,
    resume,
    rewind,
    uncordon,
)
from torchloom_core.lab.simulate.answers.answer import FleetAnswer

ANSWERS: Mapping[str, FleetAnswer] = {
    "admit": admit.ANSWER,
    "alert": alert.ANSWER,
    "checkpoint": checkpoint.ANSWER,
    "cordon": cordon.ANSWER,
    "drain": drain.ANSWER,
    "dump": dump.ANSWER,
    "evict": evict.ANSWER,
    "knob": knob.ANSWER,
    "knobs": knobs.ANSWER,
    "landscape": landscape.ANSWER,
    "migrate": migrate.ANSWER,
    "pause": pause.ANSWER,
    "preview": preview.ANSWER,
    "probe": probe.ANSWER,
    "resume": resume.ANSWER,
    "rewind": rewind.ANSWER,
    "uncordon": uncordon.ANSWER,
}
