"""A trainer for the tests: steps until a command ends it, and logs what happens to it."""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torchloom_threadlet


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.005)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--hang-by", choices=["sleep", "hold", "child", "phase"], default="sleep")
    parser.add_argument("--crash-at", type=int, default=-1)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--end-when-set", action="store_true", help="once x has been set")
    parser.add_argument("--kill-children", action="store_true", help="at the end, in a clean-up")
    parser.add_argument("--fail", action="store_true", help="at the end")
    parser.add_argument("--go-on", action="store_true", help="also when drained")
    options = parser.parse_args()

    with options.journal.open("a", buffering=1) as journal:

        def write(**fields):
            journal.write(json.dumps(fields) + "\n")

        write(event="attaching", pid=os.getpid())
        loom = torchloom_threadlet.attach(framework="test")
        answered = loom._worker._admission.is_set()
        write(event="attached", inert=loom.inert, answered=answered)
        values = {"x": 1.0}

        def set_x(value):
            if value == 13.0:
                raise RuntimeError("thirteen is unlucky")
            values["x"] = value
            write(event="set", value=value)

        loom.knob("x", lambda: values["x"], set_x, low=0.0, high=100.0)
        loom.knob("fenced_change", lambda: 1, lambda value: None, kind="int", fence="run")
        loom.on_checkpoint(lambda: write(event="checkpoint"))
        loom.on_drain(lambda: write(event="drain"))
        for step in range(options.steps):
            time.sleep(options.step_s)
            if step == options.hang_at:
                hang(options.hang_by, loom, write)
            if step == options.crash_at:
                raise ValueError("the loss is gone")
            if step == options.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if not loom.step(step, loss=1.0 / (step + 1)) and not options.go_on:
                break
            write(event="step", step=step)
            if options.end_when_set and values["x"] != 1.0:
                break
        write(event="end", state=loom.state)
        if options.kill_children:
            import psutil

            for child in psutil.Process().children(recursive=True):
                child.kill()
        if options.fail:
            raise ValueError("failed at last")


def hang(by, loom, write):
    if by == "hold":
        hold_the_gil(6.0)
        write(event="held")
    elif by == "child":
        subprocess.run([sys.executable, "-c", "while True: pass"], check=False)
    elif by == "phase":
        with loom.phase("evaluate", at_most_s=3):
            hold_the_gil(6.0)
    else:
        wait_for_ever()


def hold_the_gil(seconds):
    began_s = time.monotonic()
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))
    assert time.monotonic() - began_s >= seconds, "a signal has interrupted it"


def wait_for_ever():
    time.sleep(3600)


if __name__ == "__main__":
    main()
