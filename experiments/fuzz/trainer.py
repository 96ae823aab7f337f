"""A trainer whose sidecar is attached while the Weaver is fuzzed: it steps until it is drained."""

import sys
import time

import torchloom_threadlet

values = {"x": 1.0}
loom = torchloom_threadlet.attach(group=sys.argv[1], rank=0)
loom.knob("x", lambda: values["x"], lambda value: values.update(x=value), low=0.0, high=10.0)
loom.on_checkpoint(lambda: None)
while loom.step(loss=1.0):
    time.sleep(0.05)
