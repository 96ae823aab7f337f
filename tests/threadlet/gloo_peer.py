"""A member of gloo process groups that does what its standard input says, a line at a time."""

import json
import sys
from datetime import timedelta

import torch
from torch.distributed import AllreduceOptions
from torchft import ProcessGroupGloo
from torchft.process_group import ReconfigureOptions

FOR_EVER = timedelta(hours=1)


def process_group():
    return ProcessGroupGloo(timeout=FOR_EVER)


def configure(pg, uuid, handles):
    opts = ReconfigureOptions()
    opts.uuid, opts.handles, opts.timeout = uuid, handles, FOR_EVER
    pg.reconfigure(opts).wait()


def issue(pg, numbers):
    return pg.allreduce([torch.ones(numbers)], AllreduceOptions())


def ended(work):
    """Return how a collective ended: with an error's text, or with none."""
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    torch.set_num_threads(1)
    pg = process_group()
    say(pg.get_reconfigure_handle())
    for line in sys.stdin:
        asked = json.loads(line)
        said = []
        if "uuid" in asked:
            configure(pg, asked["uuid"], asked["handles"])
        else:
            works = [issue(pg, numbers) for numbers in asked["allreduce"]]
            said = [ended(work) for work in works]
        say(json.dumps(said))


if __name__ == "__main__":
    main()
