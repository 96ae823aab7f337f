"""The assumptions of an evaluation, one sentence each, for the report."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import moment_text
from torchloom_core.lab.evaluate.allreduce.run import Setting as LinkSetting
from torchloom_core.lab.evaluate.forecasts.training_trace import other_repair
from torchloom_core.lab.evaluate.goodput.candidates import Forecaster
from torchloom_core.lab.evaluate.goodput.episode import DAY_NS, span_ns
from torchloom_core.lab.evaluate.goodput.job import FIRST_INTERVAL_S, INSURANCE_S, STALLS
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.wire.checkpoint_tiers import MEMORY


def of_trace(bundle: Bundle) -> Iterator[str]:
    """Yield the assumptions on a trace of failures, in both modes."""
    fatal = [event for event in bundle.events() if event.fatal]
    yield f"{_origin(bundle)}, {len(watch(bundle).ids)} watched components, {len(fatal)} failures."
    if not fatal:
        yield "The trace has no failure, so no forecast can gain anything."
    late = sum(event.t_avail > event.t_event for event in fatal)
    if late:
        yield f"{late} failures became known some time after they happened, and are reported then."


def _origin(bundle: Bundle) -> str:
    manifest = bundle.manifest
    days = (manifest.end_ns - manifest.start_ns) / DAY_NS
    made = "synthetic" if manifest.synthetic else "recorded"
    return f"The trace is {made}: {manifest.source}, {manifest.licence}; {days:.4g} days"


def of_allreduce(setting: LinkSetting, bundle: Bundle, seeds: int) -> Iterator[str]:
    """Yield the assumptions of the closed loop on a bandwidth trace."""
    links, job, config = setting.links, setting.job, setting.config
    ranks = len(links.workers)
    yield f"{_origin(bundle)}, the links of {ranks} workers."
    yield (
        f"Every run begins at {moment_text(links.start_ns)}, when all links are known. The "
        f"recording is repeated after {links.bottleneck.span_s:g} s. A value holds until the next."
    )
    yield (
        f"A step is the slowest rank's compute, compression and transfer: 2 (n - 1)/n of "
        f"{job.gradient_bytes:,} bytes, times the mode's relative size, over the slowest link, and "
        f"{2 * (ranks - 1)} hops of {job.latency_s:g} s. Up to {job.overlap:.0%} of it overlaps "
        f"with compute."
    )
    yield (
        f"Times vary by {job.noise:.1%} from step to step, the same in all arms of a seed. All "
        f"{seeds} seeds have the same links, so an interval shows the effect of that noise, not "
        f"the difference to another network."
    )
    yield (
        f"Workers report every {job.heartbeat_s:g} s, policies run every "
        f"{config.weaver.tick_s:g} s, a command takes {config.evaluate.command_s:g} s and a "
        f"forecast {config.evaluate.forecast_s:g} s. A new mode that all ranks have at the start "
        f"of a step applies from the next step on; a switch has no other cost."
    )
    yield (
        "Progress is the sum of the steps' quality from the config, in steps of mode none. The "
        "reported loss is synthetic: it falls with progress, so that a guard can watch it."
    )
    yield (
        "Not modelled: failures, ranks that join or leave, other traffic than the trace has, "
        "several reductions per step, and links outside the ring."
    )


def of_simulation(setting: Setting, bundle: Bundle, seeds: int) -> Iterator[str]:
    """Yield the assumptions of the closed loop."""
    config = setting.config
    yield from _job(config)
    if setting.measured is not None:
        yield setting.measured.in_words
        if MEMORY in setting.measured.tiers:
            yield (
                "In arms with checkpoints in memory each node's is in the memory of another one "
                "too, in another rack: a failure of one node loses none, one of several nodes all "
                "of them. A restart takes the same time from any tier."
            )
    yield from _faults(setting, bundle)
    yield from _time(setting, bundle, seeds)
    yield from _loop(config, bundle)
    yield (
        "Not modelled: slower or faster replacement nodes, failures caused or prevented by a "
        "move, failures of the network between healthy nodes, unreadable checkpoints, and the "
        "compute time of policies and predictors beyond forecast_s."
    )


def of_replay(tested: Iterable[Forecaster], config: Config) -> Iterator[str]:
    """Yield the assumptions of the open loop."""
    for one in tested:
        if "model" in one.table:
            model = Model.load(Path(one.table["model"]))
            if note := other_repair(one.label, model, config.evaluate.repair_s):
                yield note
            card = model.card
            yield (
                f"{one.label}: verdict of its model card, against baselines on {card.trace}: "
                f"{card.verdict.sentence}"
            )
    yield (
        "Replay carries out no action: granted proposals change nothing, and without standbys "
        "in the trace a migration is denied as impossible. A proposal about a worker counts as "
        "an alarm whether it was granted or not."
    )


def _job(config: Config) -> Iterator[str]:
    evaluate, costs = config.evaluate, config.costs
    yield (
        f"The job has {evaluate.groups} groups of {evaluate.nodes_per_group} x "
        f"{evaluate.gpus_per_node} GPUs, {evaluate.standbys} warm standby groups and "
        f"{evaluate.spares} cold spare nodes; every arm pays for all of them."
    )
    yield (
        f"Detection takes {costs.detect_s:g} s, a restart {costs.restart_s:g} s, a checkpoint "
        f"{costs.checkpoint_s:g} s, one on demand {evaluate.proactive_checkpoint_s:g} s, a "
        f"migration pauses the run {costs.migrate_s:g} s, a cold spare is ready after "
        f"{evaluate.provision_s:g} s, a standby is warm after {evaluate.warm_up_s:g} s, and the "
        f"old nodes of a migration are inspected for {evaluate.inspect_s:g} s."
    )
    if evaluate.recovery == "restart":
        yield "Any failure stops all groups, except in arms with another recovery mode."
    else:
        yield "The other groups go on when one fails, except in arms with another recovery mode."
        if any(getattr(evaluate, stall) for stall in STALLS):
            yield (
                f"They stall {evaluate.join_stall_s:g} s when a group joins, "
                f"{evaluate.leave_stall_s:g} s when one leaves in order, and "
                f"{evaluate.kill_stall_s:g} s when one dies, in addition to the lost step."
            )
        yield (
            "An admitted standby trains as every group does, so the global batch grows. Goodput "
            "counts all groups, goodput as planned none beyond the planned number."
        )
    if evaluate.checkpoint_interval_s > 0:
        yield (
            f"Arms without a checkpoint interval of their own save after "
            f"{evaluate.checkpoint_interval_s:g} s of work."
        )
    else:
        yield (
            f"Arms without a checkpoint interval of their own use Daly's for the seed's "
            f"failures, or {INSURANCE_S:g} s where recovery is per step. With the policy "
            f"checkpoint_interval, the run and its control start with {FIRST_INTERVAL_S:g} s."
        )


def _faults(setting: Setting, bundle: Bundle) -> Iterator[str]:
    fatal = [event for event in bundle.events() if event.fatal]
    follows = Counter(event.follows for event in fatal)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(follows.items()))
    yield f"Failures by what they follow: {counts or 'none'}."
    if follows["unknown"]:
        yield (
            f"Failures of unknown cause are assumed to follow the {setting.unknown}; the report "
            f"also compares both assumptions."
        )
    if follows["job"] or follows["unknown"]:
        yield (
            "A failure that follows the job counts if it was recorded on a node that the "
            "simulated job starts on; it then hits the job wherever the job runs."
        )
    ends = sum(event.t_resolved is None for event in fatal)
    if ends:
        repair_s = setting.config.evaluate.repair_s
        yield f"{ends} failures have no known end: their nodes are under repair for {repair_s:g} s."
    yield (
        "A node fails when it failed in the recording, whatever runs on it; its replacement "
        "has its own recorded failures."
    )


def _time(setting: Setting, bundle: Bundle, seeds: int) -> Iterator[str]:
    first_ns, last_ns, length_ns = span_ns(bundle, setting.config.evaluate, setting.from_ns)
    days = length_ns / DAY_NS
    yield (
        f"Each of {seeds} seeds draws {days:.4g} days and the nodes of the job from the trace, "
        f"the same for all arms. The draws are from one trace, and overlap if "
        f"{seeds} x {days:.4g} is more than its {(last_ns - first_ns) / DAY_NS:.4g} days: an "
        f"interval shows the effect of nodes and time, not the difference to another fleet."
    )
    if length_ns < round(setting.config.evaluate.days * DAY_NS):
        yield f"The trace is shorter than the {setting.config.evaluate.days:g} days requested."
    if setting.from_ns is not None and setting.from_ns > bundle.manifest.start_ns:
        begun = (first_ns - bundle.manifest.start_ns) / DAY_NS
        yield (
            f"Runs begin no earlier than day {begun:.4g}, after --until and after the models' "
            f"training and horizon."
        )


def _loop(config: Config, bundle: Bundle) -> Iterator[str]:
    evaluate = config.evaluate
    yield (
        f"Policies run every {evaluate.tick_s:g} s, a command takes {evaluate.command_s:g} s "
        f"and a forecast {evaluate.forecast_s:g} s."
    )
    yield (
        "Prices assume half a checkpoint interval of unsaved work, or one step where recovery "
        "is per step. No policy is quarantined for slowness."
    )
    load = bundle.manifest.load_dependent
    if load:
        where = "placed" if bundle.placement() else "assumed to be placed on the first nodes"
        yield (
            f"{', '.join(load)} depend on the load: they are omitted for workers on nodes where "
            f"the recorded job, {where}, did not run."
        )
