"""A small real training run: an MLP on scikit-learn's digits, torchft DDP, with torchLoom.

An example of a user's script, and the trainer of ``torchloom demo``. The lines for torchLoom are
marked; everything else follows torchft's README.
"""

import argparse
import hashlib
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.digits import digits
from torchloom_threadlet.landscape import Landscape
from torchloom_threadlet.preview import Preview
from torchloom_threadlet.throttled import ThrottledProcessGroup
from torchloom_threadlet.torchft import attach  # torchLoom 1

_BATCH = 96


def build(seed: int, width: int = 128) -> nn.Module:
    """Return the model, with the same weights for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width // 2),
        nn.ReLU(),
        nn.Linear(width // 2, 10),
    )


def shard(step: int, rank: int, participants: int, samples: int, seed: int) -> torch.Tensor:
    """Return the rows of the data that one group uses in ``step``.

    A step's batch is the same whatever the number of groups.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    batch = torch.randperm(samples, generator=generator)[:_BATCH]
    return batch[rank::participants]


def fingerprint(model: nn.Module) -> str:
    """Return a digest of the weights: equal if and only if they are bitwise equal."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def standby_tasks(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    checkpoints: Path,
) -> dict[str, Any]:
    """Return the landscape and preview of a standby, based on any group's newest checkpoint."""

    def load() -> int:
        paths = sorted(checkpoints.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns)
        if not paths:
            raise FileNotFoundError(f"no checkpoint in {checkpoints} yet")
        state = torch.load(paths[-1], weights_only=True)
        _load(model, optimizer, state)
        return int(state["torchft"]["step"])

    def step() -> torch.Tensor:
        rows = torch.randint(len(images), (_BATCH,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    def pinned() -> torch.Tensor:
        return nn.functional.cross_entropy(model(images[::4]), labels[::4])

    return {
        "landscape": Landscape(model, pinned, load),
        "preview": Preview(model, optimizer, step, load),
    }


def main() -> None:
    """Train until the run's step counter reaches ``--steps``."""
    options = _options()
    torch.set_num_threads(1)

    images, labels = digits()
    model = build(options.seed, options.width)
    inner = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    store = TCPStore(options.host, 0, is_master=True, wait_for_workers=False)

    looks = standby_tasks(model, inner, images, labels, options.checkpoint.parent)
    loom = attach(  # torchLoom 2: a standby waits here, or in 3
        group=options.group, held=True, **looks
    )
    gloo = ProcessGroupGloo(timeout=timedelta(seconds=options.peer_timeout_s))
    link = ThrottledProcessGroup(gloo) if options.link_rate else None
    pg = CompressedProcessGroup(link or gloo, parameters=model.parameters())  # registers a knob
    manager = Manager(
        pg=pg,
        load_state_dict=lambda state: _load(model, inner, state),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        quorum_retries=100,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=60),
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr=options.host,
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        hostname=options.host,
    )
    optimizer = Optimizer(manager, inner)
    parallel = DistributedDataParallel(manager, model)
    loom.knob(
        "steps",
        lambda: options.steps,
        lambda steps: setattr(options, "steps", steps),
        kind="int",
        low=1,
        fence="run",
        doc="the step after which the run ends",
    )
    loom.manage(manager, optimizer)  # torchLoom 3
    loom.on_checkpoint(lambda: _save(options.checkpoint, manager, model, inner))  # torchLoom 4

    failed = 0
    drained = False
    with options.log.open("a", buffering=1) as log:
        while manager.current_step() < options.steps:
            started = time.time()
            if link:
                link.bytes_per_s = _rate(options.link_rate)
            optimizer.zero_grad()  # starts the quorum; heals a joiner, which moves its step
            step = manager.current_step()
            rank = manager.participating_rank() or 0
            participants = max(manager.num_participants(), 1)
            rows = shard(step, rank, participants, len(images), options.seed)
            time.sleep(options.step_ms / 1000)
            loss = nn.functional.cross_entropy(parallel(images[rows]), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            committed = manager.current_step() > step
            failed += not committed
            figures: dict[str, Any] = pg.take_figures().metrics()
            _line(
                log,
                step=manager.current_step(),
                committed=committed,
                error="" if committed else str(manager.errored() or ""),
                participants=participants,
                loss=loss.item(),
                duration_s=time.time() - started,
                sent_bytes=figures["sent_bytes"],
                knobs=loom.knobs,
            )
            if not loom.step(loss=loss, **figures):  # torchLoom 5
                drained = True
                break

        result = {
            "group": loom.group,
            "step": manager.current_step(),
            "drained": drained,
            "failed_steps": failed,
            "weights": fingerprint(model),
            "accuracy": _accuracy(model, images, labels),
        }
        _line(log, **result)
    options.result.write_text(json.dumps(result))
    if not drained:
        # Peers may still read the last step's votes from this process.
        time.sleep(options.linger_s)
        manager.shutdown()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lighthouse", required=True, help="URL of torchft's lighthouse")
    parser.add_argument("--host", default="localhost", help="this host's name for other groups")
    parser.add_argument("--group", help="replica group; else TORCHLOOM_GROUP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=128, help="units of the first hidden layer")
    parser.add_argument("--step-ms", type=float, default=60.0, help="simulated work per step, ms")
    parser.add_argument("--log", type=Path, default=Path("digits.jsonl"))
    parser.add_argument("--result", type=Path, default=Path("digits.json"))
    parser.add_argument("--link-rate", type=Path, help="file with the simulated link rate, bytes/s")
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"))
    parser.add_argument("--linger-s", type=float, default=2.0)
    parser.add_argument(
        "--peer-timeout-s", type=float, default=5.0, help="gloo's, for a silent peer"
    )
    return parser.parse_args()


def _line(log: Any, **fields: object) -> None:
    log.write(json.dumps({"t": time.time(), **fields}) + "\n")


def _rate(path: Path) -> float | None:
    """Return the number in the file; None, no limit, if it is empty."""
    text = path.read_text()
    return float(text) if text else None


def _load(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _save(path: Path, manager: Manager, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "torchft": manager.state_dict(),
    }
    unfinished = path.with_suffix(".part")
    torch.save(state, unfinished)
    unfinished.replace(path)


def _accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


if __name__ == "__main__":
    main()
