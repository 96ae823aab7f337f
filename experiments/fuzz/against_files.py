"""Mutated files to the commands that read them, each run in a process that may die or hang."""

import contextlib
import functools
import hashlib
import io
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import msgspec
from found import Found, Tell
from mutation import Mutator, as_json
from templates import RUN, events, telemetry

from torchloom_core import cli
from torchloom_core.activation.activation import activate
from torchloom_core.activation.discovery import discover
from torchloom_core.config.loading import load
from torchloom_core.errors import TorchloomError
from torchloom_core.kernel.kernel import Kernel
from torchloom_core.learning.fitted import load_fitted
from torchloom_core.trajectory.layout import run_folder
from torchloom_core.trajectory.writer import TrajectoryWriter
from torchloom_core.transport.broker import EmbeddedBroker
from torchloom_core.transport.security.credentials import Credentials
from torchloom_core.weaver.deadline_guard import DeadlineGuard
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Hello, JoinFile, Telemetry
from torchloom_core.wire.requests import Propose, Request
from torchloom_threadlet.identity import read_join

_DEADLINE_S = 30.0
_SHOWN = 200
_SECOND_NS = 1_000_000_000
_START_NS = 1_790_000_000 * _SECOND_NS

CONFIG = f"""
[run]
name = "{RUN}"
[weaver]
state_dir = "STATE"
show = ["loss"]
[broker]
host = "127.0.0.1"
port = 0
[arbiter]
min_groups = 1
forbidden = [{{ policy = "straggler", action = "pause" }}]
[arbiter.actions.migrate]
limit_per_hour = 3
[policies.silence]
[policies.thresholds]
rules = [{{ metric = "loss", level = 3.0, action = "alert" }}]
[predictors.fault_history]
"""
FLEET = """
nodes = 6
days = 6.0
interval_s = 3600.0
seed = 1
faults_per_node_day = 0.3
"""

TOML_VALUES = (
    b"nan", b"-inf", b"9" * 40, b"9" * 5000, b"[" * 3000, b"'\\ud800'", b"{}", b"-1", b"1e400",
    b"1979-05-27", b"[[1]]", b"{a.b=1}", b'"' + b"x" * 5000 + b'"', b"0x" + b"f" * 90,
)  # fmt: skip

Case = tuple[Path, Callable[[], object]]


def fuzz_files(folder: Path, count: int, seed: int, tell: Tell) -> Found:
    """Mutate one file at a time, call what reads it, and put it back."""
    found = Found("files")
    mutator = Mutator(seed)
    cases = _scene(folder)
    pool = _pool()
    slowest_s = 0.0
    try:
        for number in range(count):
            path, call = mutator.random.choice(cases)
            whole = path.read_bytes()
            path.write_bytes(_mutated(path, whole, mutator))
            what = f"file {number}, {path.relative_to(folder)}"
            began = time.monotonic()
            try:
                trouble = pool.submit(_run, call).result(_DEADLINE_S)
            except TimeoutError:
                found.hang(what)
                pool = _pool(pool)
            except BrokenProcessPool:
                found.death(what)
                pool = _pool(pool)
            else:
                if trouble:
                    found.traceback(f"{what}: {trouble}")
            slowest_s = max(slowest_s, time.monotonic() - began)
            path.write_bytes(whole)
            found.sent += 1
            tell(found.sent)
    finally:
        _end(pool)
    found.numbers["slowest_s"] = round(slowest_s, 2)
    return found


def _mutated(path: Path, whole: bytes, mutator: Mutator) -> bytes:
    if path.suffix == ".json" and mutator.random.random() < 0.6:
        return as_json(mutator.structure(msgspec.json.decode(whole)))
    if path.suffix == ".jsonl" and whole and mutator.random.random() < 0.6:
        lines = whole.splitlines()
        at = mutator.random.randrange(len(lines))
        lines[at] = as_json(mutator.structure(msgspec.json.decode(lines[at])))
        return b"\n".join(lines) + b"\n"
    if path.suffix == ".toml" and mutator.random.random() < 0.5:
        lines = whole.splitlines()
        at = mutator.random.randrange(len(lines))
        key = lines[at].partition(b"=")[0] or b"a"
        value = mutator.random.choice(TOML_VALUES)
        lines[at] = key + b"= " + value
        return b"\n".join(lines)
    return mutator.bytes(whole)


# --- the files, and what reads them -------------------------------------------------------------


def _scene(folder: Path) -> list[Case]:
    state = folder / "state"
    config = folder / "torchloom.toml"
    config.write_text(CONFIG.replace("STATE", str(state)))
    command = functools.partial(functools.partial, _command)
    broker = state / "broker"
    Credentials.ensure(state, RUN)
    (state / "join.json").write_bytes(
        msgspec.json.encode(JoinFile(url="nats://127.0.0.1:1", run=RUN))
    )
    record = {"pid": 1, "port": 1, "url": "nats://127.0.0.1:1", "monitor_url": "http://a"}
    (broker / "broker.json").write_bytes(msgspec.json.encode(record))
    asks = command(["status", "--config", str(config)])
    cases: list[Case] = [
        (config, command(["plugins", "--config", str(config)])),
        (config, asks),
        (config, command(["trajectory", "show", "--config", str(config)])),
        (state / "join.json", functools.partial(read_join, state / "join.json")),
        (broker / "broker.json", asks),
        (broker / "broker.json", functools.partial(_last_record, state)),
        (broker / "keys" / "operator.creds", asks),
        *((path, functools.partial(Credentials.ensure, state, RUN)) for path in _keys(broker)),
    ]
    root = _trajectory(state, config)
    reads = [
        command(["trajectory", "show", str(root)]),
        command(["trajectory", "replay", str(root)]),
        command(["trajectory", "export", str(folder / "tables"), str(root)]),
        command(["trace", "from-trajectory", str(root), str(folder / "live.tltrace"), "--force"]),
    ]
    cases += [(path, call) for path in _files(root) for call in reads]
    bundle, fleet = folder / "small.tltrace", folder / "fleet.toml"
    fleet.write_text(FLEET)
    make = ["trace", "synthesize", str(folder / "other.tltrace"), "--parameters", str(fleet)]
    cases += [(fleet, command([*make, "--force"]))]
    _must(["trace", "synthesize", str(bundle), "--parameters", str(fleet)])
    checks = [command(["trace", verb, str(bundle)]) for verb in ("validate", "describe")]
    cases += [(path, call) for path in _files(bundle) for call in checks]
    _must(["trace", "from-trajectory", str(root), str(folder / "recorded.tltrace")])
    recorded = folder / "recorded.tltrace"
    check = command(["trace", "validate", str(recorded)])
    cases += [(path, check) for path in _files(recorded)]
    model = folder / "small.tlmodel"
    _must(["fit", str(bundle), "--predictor", "boosting", "--until", "4d", "--out", str(model)])
    cases += [(path, functools.partial(_load_model, model, path)) for path in _files(model)]
    return cases


def _keys(broker: Path) -> list[Path]:
    return sorted(path for path in (broker / "keys").iterdir() if path.suffix == ".json")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _trajectory(state: Path, config_path: Path) -> Path:
    """Record a short life as a Weaver does, and return the run's folder."""
    config = load(config_path, {})
    plugins = activate(config, discover(), str(config_path))
    kernel = Kernel(config, plugins, DeadlineGuard(60.0))
    root = run_folder(state, RUN)
    writer = TrajectoryWriter(root, RUN, 1, config, plugins.versions, _START_NS)
    hello = msgspec.convert(events("w-0")[0], Hello)
    batch = msgspec.convert(telemetry("w-0"), Telemetry)
    action = ChangeKnob(knob="lr", value=0.5)
    inputs = [Recovered(epoch=1), hello, Request(id="r1", want=Propose(action=action))]
    for number, message in enumerate([*inputs, *[batch, batch, Tick()] * 10]):
        ts_ns = _START_NS + number * _SECOND_NS
        outputs = kernel.step(message, ts_ns)
        if isinstance(message, Telemetry):
            writer.telemetry(message, ts_ns)
        else:
            writer.event(message, ts_ns, outputs)
    writer.close()
    return root


def _last_record(state: Path) -> object:
    broker = EmbeddedBroker(state, RUN)
    last = broker._last_record()
    return last and broker._is_ours(last.pid)


def _load_model(model: Path, mutated: Path) -> object:
    """Load a model, its sums made right where that is possible: else nothing else is looked at."""
    info = model / "model.json"
    name = str(mutated.relative_to(model))
    before = info.read_bytes()
    try:
        if mutated != info:
            table: dict[str, Any] = msgspec.json.decode(before)
            if name in table["files"]:
                table["files"][name] = hashlib.sha256(mutated.read_bytes()).hexdigest()
                info.write_bytes(msgspec.json.encode(table))
        cls = next(plugin.cls for plugin in discover() if plugin.name == "boosting")
        return load_fitted(model, cls)
    finally:
        if mutated != info:
            info.write_bytes(before)


# --- in the other process -----------------------------------------------------------------------


def _command(arguments: Sequence[str]) -> None:
    cli._run(list(arguments))


def _must(arguments: Sequence[str]) -> None:
    words = io.StringIO()
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        status = cli._run(list(arguments))
    if status:
        raise RuntimeError(f"{' '.join(arguments)}: {words.getvalue()}")


def _run(call: Callable[[], object]) -> str:
    """Return what a call raised that is no word to a person, empty where it raised none."""
    words = io.StringIO()
    try:
        with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
            call()
    except TorchloomError as error:
        return "" if "\n" not in str(error) else f"more than a line: {str(error)[:_SHOWN]}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what we look for
        place = traceback.extract_tb(error.__traceback__)[-3:]
        lines = " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(place))
        return f"{type(error).__name__}: {str(error)[:_SHOWN]} ({lines})"
    return "" if "Traceback" not in words.getvalue() else words.getvalue()[-_SHOWN:]


def _pool(old: ProcessPoolExecutor | None = None) -> ProcessPoolExecutor:
    if old is not None:
        _end(old)
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
