"""The trainer of the command benchmark: a step every millisecond, and one knob.

``python command_trainer.py`` ends when it is killed or its worker is drained.
"""

import time

import torchloom_threadlet

_STEP_S = 0.001


def main() -> None:
    """Step for ever."""
    loom = torchloom_threadlet.attach(framework="bench")
    values = {"x": 0.0}
    loom.knob("x", lambda: values["x"], lambda value: values.update(x=value))
    while loom.step(loss=0.5):
        time.sleep(_STEP_S)


if __name__ == "__main__":
    main()
