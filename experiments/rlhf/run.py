"""Train with trl on rollouts from other processes, under a Weaver, and show both roles."""

import argparse
import tempfile
from pathlib import Path

from experiments.rlhf.processes import Play, until


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rlhf-"))
    with Play(folder, options.rollouts, options.seed) as play:
        print(f"Logs: {folder}")
        trainer = play.train(options.steps)
        until(lambda: len(play.lines()) > options.steps // 2 or trainer.poll() is not None)
        print(play.command("status"))
        status = trainer.wait()
        lines = play.lines()
        block = max(1, len(lines) // 6)
        for at in range(0, len(lines), block):
            part = lines[at : at + block]
            mean = sum(line.reward for line in part) / len(part)
            print(f"steps {part[0].step:4d} to {part[-1].step:4d}: reward {mean:.2f}")
        took_s = lines[-1].t - lines[0].t
        print(f"Trainer ended with status {status}: {len(lines)} steps, {took_s:.0f} s")


if __name__ == "__main__":
    main()
