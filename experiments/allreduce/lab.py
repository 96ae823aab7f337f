"""Set up the lab, shape its links by hand, take it down.

python experiments/allreduce/lab.py up --ranks 4
python experiments/allreduce/lab.py rate 100
python experiments/allreduce/lab.py down
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence

from torchloom_core.demos.bandwidth.namespaces import (
    MOST_RANKS,
    Lab,
    NoLabError,
    Rate,
    reason_for_none,
)

EXIT_NOT_HERE = 3


@contextlib.contextmanager
def or_exit() -> Iterator[None]:
    """End the process with one line and status 3 where there can be no lab."""
    try:
        yield
    except NoLabError as error:
        print(f"no lab here: {error}", file=sys.stderr)
        sys.exit(EXIT_NOT_HERE)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("up", "down", "rate", "status"))
    parser.add_argument("mbit", nargs="?", help="of `rate`: Mbit/s, or unshaped")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--name", default="a", help="name of the lab; several can exist")
    args = parser.parse_args(argv)
    lab = Lab(args.ranks, args.name)
    with or_exit():
        if args.what == "up":
            lab.up()
        elif reason := reason_for_none():
            raise NoLabError(reason)
        elif args.what == "down":
            lab.down()
        elif args.what == "rate":
            _set_rate(args)
        for space in lab.left():
            print(space)
    return 0


def _set_rate(args: argparse.Namespace) -> None:
    ranks = len(Lab(MOST_RANKS, args.name).left()) - 1
    if ranks < 1:
        raise SystemExit(f"there is no lab {args.name!r}: set it up first")
    if args.mbit is None:
        raise SystemExit("rate: need Mbit/s, or unshaped")
    rate = Rate.both(None if args.mbit == "unshaped" else float(args.mbit))
    Lab(ranks, args.name).set_rates([rate] * ranks)


if __name__ == "__main__":
    sys.exit(main())
