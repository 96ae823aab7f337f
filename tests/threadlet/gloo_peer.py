"""A member of gloo process groups that runs the commands of its standard input, by line.

Like an attached trainer it passes on an error of a collective. A member with a
timeout in seconds, for its process group, is a trainer that is not attached and does not.
"""

import json
import sys
from datetime import timedelta

import torch
from torch.distributed import AllreduceOptions
from torchft import ProcessGroupGloo
from torchft.process_group import ReconfigureOptions

from torchloom_threadlet.adapters.torchft.connections import Connections

FOR_EVER = timedelta(hours=1)


def process_group(timeout=FOR_EVER):
    return ProcessGroupGloo(timeout=timeout)


def configure(pg, uuid, handles, timeout=FOR_EVER):
    opts = ReconfigureOptions()
    opts.uuid, opts.handles, opts.timeout = uuid, handles, timeout
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


def answer(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    torch.set_num_threads(1)
    plain = timedelta(seconds=float(sys.argv[1])) if sys.argv[1:] else None
    pg = process_group(plain or FOR_EVER)
    connections = None if plain else Connections(pg)
    answer(pg.get_reconfigure_handle())
    for line in sys.stdin:
        request = json.loads(line)
        answers = []
        if "uuid" in request:
            configure(pg, request["uuid"], request["handles"], plain or FOR_EVER)
        else:
            works = [issue(pg, numbers) for numbers in request["allreduce"]]
            answers = [ended(work) for work in works]
            if connections and any(answers):
                connections.pass_error_on()
        answer(json.dumps(answers))


if __name__ == "__main__":
    main()
