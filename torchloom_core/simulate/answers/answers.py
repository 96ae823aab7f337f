"""All answers of the fleet model: by kind of action, and by the deed that a worker is told."""

from collections.abc import Mapping

from torchloom_core.simulate.answers import (
    alert,
    checkpoint,
    cordon,
    drain,
    dump,
    knob,
    migrate,
    pause,
    resume,
    uncordon,
)
from torchloom_core.simulate.answers.answer import FleetAnswer, OfGroup, OfRun

ANSWERS: Mapping[str, FleetAnswer] = {
    "alert": alert.ANSWER,
    "checkpoint": checkpoint.ANSWER,
    "cordon": cordon.ANSWER,
    "drain": drain.ANSWER,
    "dump": dump.ANSWER,
    "knob": knob.ANSWER,
    "migrate": migrate.ANSWER,
    "pause": pause.ANSWER,
    "resume": resume.ANSWER,
    "uncordon": uncordon.ANSWER,
}

OF_GROUP: Mapping[type, OfGroup] = {
    deed: do for answer in ANSWERS.values() for deed, do in answer.of_group.items()
}
OF_RUN: Mapping[type, OfRun] = {
    deed: do for answer in ANSWERS.values() for deed, do in answer.of_run.items()
}
