"""A trainer with every kind of odd input, to see what of it arrives."""

import enum
import sys
import time

import numpy as np

import torchloom_threadlet

HALF = "\ud800"


class Odd:
    def __str__(self):
        raise RuntimeError("no text")


class Kind(enum.IntEnum):
    A = 7


loom = torchloom_threadlet.attach(
    group="g" * 80, node=f"n{HALF}/1", rack=f"r {HALF}", framework=HALF * 300
)
values = {"x": 1.0}
loom.knob("x", lambda: values["x"], lambda value: values.update(x=float("inf")), high=float("inf"))
loom.knob("a knob", lambda: 1.0, lambda value: None)
loom.knob("size", lambda: np.float64(2.0), lambda value: None, doc=HALF * 3000)
loom.knob("mode", lambda: HALF, lambda value: None, kind="choice", choices=[HALF])
loom.knob("far", lambda: 2**70, lambda value: None, kind="int")


def fail():
    raise ValueError(HALF * 3000)


loom.on_checkpoint(fail)
loom.note(
    "a kind",
    step=2**70,
    half=HALF,
    nan=float("nan"),
    long="l" * 900_000,
    other="o" * 900_000,
    odd=Odd(),
    path=sys.path,
    scalar=np.int64(3),
    array=np.zeros(3),
    kind=Kind.A,
    none=None,
)
loom.note("many", **{f"field {n}": n for n in range(100)})
many = {f"{'m' * 150}{n}": float(n) for n in range(3000)}
many[HALF] = 2.0
many["train/loss"] = 3.0
deadline = time.monotonic() + 600
number = 0
while time.monotonic() < deadline:
    number += 1
    step = 2**70 if number % 2 else np.int64(number)
    if not loom.step(step, **{"train/loss": 3.0, "7up": Odd(), "huge": 2**2000}):
        break
    if number % 50 == 3:  # the first ones precede the sidecar's connection
        loom.step(step, **many)
    time.sleep(0.01)
