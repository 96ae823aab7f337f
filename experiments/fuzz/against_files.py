"""Run commands on mutated files, each in a process that may die or hang."""

import functools
import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

import calls
import msgspec
import pyarrow as pa
from calls import Case, fuzz_cases, must
from found import Found, Show
from msgspec.structs import replace
from mutation import Mutator
from templates import RUN, events, telemetry

from torchloom_core.config.loading import load
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.learning.fitted import load_fitted
from torchloom_core.lab.learning.model import ModelInfo, _encode
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.layout import TELEMETRY_SCHEMA, part_paths, run_folder
from torchloom_core.live.trajectory.reader import EpochRecord
from torchloom_core.live.trajectory.sealing import seal
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport.broker.embedded import EmbeddedBroker, _Record
from torchloom_core.live.transport.detached_process import read_record
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import UNREADABLE, encode_telemetry
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Hello, JoinFile, Telemetry
from torchloom_core.wire.requests import Propose, Request
from torchloom_threadlet.identity import read_join

_SECOND_NS = 1_000_000_000
_START_NS = 1_790_000_000 * _SECOND_NS
_PART_BYTES = 4000
_END_BYTES = 8
"""How a stream ends that is complete; a part has no end."""

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


def fuzz_files(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Mutate one file at a time, call its reader, and restore the file."""
    found, mutator = Found("files"), Mutator(seed)
    fuzz_cases(found, folder, _scene(folder), mutator, count, show)
    return found


# --- the files, and what reads them -------------------------------------------------------------


def _scene(folder: Path) -> list[Case]:
    state = folder / "state"
    config = folder / "torchloom.toml"
    config.write_text(CONFIG.replace("STATE", str(state)))
    command = functools.partial(functools.partial, calls.command)
    broker = state / "broker"
    Credentials.ensure(state, RUN)
    (state / "join.json").write_bytes(
        msgspec.json.encode(JoinFile(url="nats://127.0.0.1:1", run=RUN))
    )
    record = {"pid": 1, "port": 1, "url": "nats://127.0.0.1:1", "monitor_url": "http://a"}
    (broker / "broker.json").write_bytes(msgspec.json.encode(record))
    status = command(["status", "--config", str(config)])
    cases: list[Case] = [
        (config, command(["plugins", "--config", str(config)])),
        (config, status),
        (config, command(["trajectory", "show", "--config", str(config)])),
        (state / "join.json", functools.partial(read_join, state / "join.json")),
        (broker / "broker.json", status),
        (broker / "broker.json", functools.partial(_last_record, state)),
        (broker / "keys" / "operator.creds", status),
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
    parts = sorted(root.rglob("telemetry-*.arrow"))
    cases += [(part, functools.partial(_seal_copy, part, folder)) for part in parts]
    bundle, fleet = folder / "small.tltrace", folder / "fleet.toml"
    fleet.write_text(FLEET)
    make = ["trace", "synthesize", str(folder / "other.tltrace"), "--parameters", str(fleet)]
    cases += [(fleet, command([*make, "--force"]))]
    must(["trace", "synthesize", str(bundle), "--parameters", str(fleet)])
    checks = [command(["trace", verb, str(bundle)]) for verb in ("validate", "describe")]
    cases += [(path, call) for path in _files(bundle) for call in checks]
    must(["trace", "from-trajectory", str(root), str(folder / "recorded.tltrace")])
    recorded = folder / "recorded.tltrace"
    check = command(["trace", "validate", str(recorded)])
    cases += [(path, check) for path in _files(recorded)]
    model = folder / "small.tlmodel"
    must(["fit", str(bundle), "--predictor", "boosting", "--until", "4d", "--out", str(model)])
    cases += [(path, functools.partial(_load_model, model, path)) for path in _files(model)]
    return cases


def _keys(broker: Path) -> list[Path]:
    return sorted(path for path in (broker / "keys").iterdir() if path.suffix == ".json")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _trajectory(state: Path, config_path: Path) -> Path:
    """Record a short run as a Weaver does, and return its folder: a part of each format."""
    config = load(config_path, {})
    plugins = activate(config, discover(), str(config_path))
    kernel = Kernel(config, plugins, DeadlineGuard(60.0))
    root = run_folder(state, RUN)
    writer = TrajectoryWriter(
        root, RUN, 1, config, plugins.versions, _START_NS, part_bytes=_PART_BYTES
    )
    hello = msgspec.convert(events("w-0")[0], Hello)
    batch = msgspec.convert(telemetry("w-0"), Telemetry)
    action = ChangeKnob(knob="lr", value=0.5)
    inputs = [Recovered(epoch=1), hello, Request(id="r1", want=Propose(action=action))]
    for number, message in enumerate([*inputs, *[batch, batch, Tick()] * 10]):
        ts_ns = _START_NS + number * _SECOND_NS
        outputs = kernel.step(message, ts_ns)
        if isinstance(message, Telemetry):
            writer.telemetry(encode_telemetry(message), ts_ns)
        else:
            writer.event(message, ts_ns, outputs)
        writer.flush()
    writer.close()
    sealed, earlier, *_ = part_paths(writer.folder, "telemetry")
    rows = list(EpochRecord(writer.folder).record_batches([earlier]))
    with pa.ipc.new_stream(earlier, TELEMETRY_SCHEMA) as stream:  # as up to format 3
        stream.write_table(pa.Table.from_batches(rows).unify_dictionaries())
    earlier.write_bytes(earlier.read_bytes()[:-_END_BYTES])
    seal(sealed)
    return root


def _seal_copy(part: Path, folder: Path) -> None:
    """Seal a copy of a part; a damaged one remains."""
    copy = folder / part.name
    shutil.copy(part, copy)
    with suppress(OSError, ValueError, pa.ArrowException):
        seal(copy)


def _last_record(state: Path) -> object:
    broker = EmbeddedBroker(state, RUN)
    last = read_record(broker._record_path, _Record)
    return last and broker._is_ours(last.pid)


def _load_model(model: Path, mutated: Path) -> object:
    """Load a model with corrected checksums if possible, so that not only they are tested."""
    info = model / "model.json"
    name = str(mutated.relative_to(model))
    before = info.read_bytes()
    try:
        card = msgspec.json.decode(before, type=ModelInfo)
        if name in card.files:
            card.files[name] = hashlib.sha256(mutated.read_bytes()).hexdigest()
        own = hashlib.sha256(_encode(replace(card, sha256=""))).hexdigest()
        info.write_bytes(_encode(replace(card, sha256=own)))
    except UNREADABLE:
        pass  # the file is no longer a model and has no checksums
    try:
        cls = next(plugin.cls for plugin in discover() if plugin.name == "boosting")
        return load_fitted(model, cls)
    finally:
        info.write_bytes(before)
