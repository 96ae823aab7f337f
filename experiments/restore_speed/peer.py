"""A healthy replica group: it sends its state by torchft's transports on request.

``peer.py MEGABYTES STORE``; it prints the address of its HTTP transport, then sends the state by
the process group for each line that it reads.
"""

import sys
from datetime import timedelta

import torch
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo, reconfigure_with_store

from experiments.restore_speed.state import STEP, make

TIMEOUT = timedelta(seconds=60)
CHUNKS = 8


def group_of(store: str, rank: int) -> ProcessGroupGloo:
    """Return the process group of sender and receiver."""
    group = ProcessGroupGloo(timeout=TIMEOUT)
    reconfigure_with_store(group, store, rank, 2)
    return group


def main() -> None:
    megabytes, store = int(sys.argv[1]), sys.argv[2]
    state = make(megabytes)
    http = HTTPTransport(TIMEOUT, num_chunks=CHUNKS)
    http.send_checkpoint([1], STEP, state, TIMEOUT)
    print(http.metadata(), flush=True)
    by_group = PGTransport(group_of(store, 0), TIMEOUT, torch.device("cpu"))
    for _ in sys.stdin:
        by_group.send_checkpoint([1], STEP, state)


if __name__ == "__main__":
    main()
