"""Everything that an evaluation takes for granted, in plain sentences."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchloom_core.clock import moment_text
from torchloom_core.config.schema import Config
from torchloom_core.evaluate import allreduce
from torchloom_core.evaluate.forecasts.training_trace import other_repair
from torchloom_core.evaluate.goodput.candidates import Forecaster
from torchloom_core.evaluate.goodput.episode import DAY_NS, span_ns
from torchloom_core.evaluate.goodput.job import FIRST_INTERVAL_S, INSURANCE_S, STALLS
from torchloom_core.evaluate.goodput.run import Setting
from torchloom_core.learning.model import Model
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import watch


def of_trace(bundle: Bundle) -> Iterator[str]:
    """Yield what is assumed of a trace of failures in either mode."""
    fatal = [event for event in bundle.events() if event.fatal]
    yield f"{_of_whom(bundle)}, {len(watch(bundle).ids)} watched, {len(fatal)} failures."
    if not fatal:
        yield "The trace has no failure, so nothing can be gained by expecting one."
    late = sum(event.t_avail > event.t_event for event in fatal)
    if late:
        yield f"{late} failures were known only some time after they happened, and are told then."


def _of_whom(bundle: Bundle) -> str:
    manifest = bundle.manifest
    days = (manifest.end_ns - manifest.start_ns) / DAY_NS
    made = "synthetic" if manifest.synthetic else "recorded"
    return f"The trace is {made}: {manifest.source}, {manifest.licence}; {days:.4g} days"


def of_allreduce(setting: allreduce.Setting, bundle: Bundle, seeds: int) -> Iterator[str]:
    """Yield what the closed loop on a trace of bandwidth assumes."""
    links, job, config = setting.links, setting.job, setting.config
    ranks = len(links.workers)
    yield f"{_of_whom(bundle)}, the links of {ranks} workers."
    yield (
        f"All links are known from {moment_text(links.start_ns)} on, where every run begins, and "
        f"begin anew after {links.bottleneck.span_s:g} s, where the recording ends. A value holds "
        f"until the next."
    )
    yield (
        f"A step is the slowest rank's compute, compression, and the wire: 2 (n - 1)/n of "
        f"{job.gradient_bytes:,} bytes, times what the mode sends, over the slowest link, and "
        f"{2 * (ranks - 1)} hops of {job.latency_s:g} s. {job.overlap:.0%} of it goes behind "
        f"compute, as far as that lasts."
    )
    yield (
        f"Times vary by {job.noise:.1%} from step to step, the same in all arms of a seed; the "
        f"links are the same in all of the {seeds} seeds, so an interval tells what that noise "
        f"makes out, not how another network would fare."
    )
    yield (
        f"Workers report every {job.heartbeat_s:g} s, policies look every "
        f"{config.weaver.tick_s:g} s, a command takes {config.evaluate.command_s:g} s and a "
        f"forecast {config.evaluate.forecast_s:g} s. A mode that all hold as a step begins is "
        f"that of the step after it; to switch costs nothing else."
    )
    yield (
        "Progress is the sum of the steps' quality as the config has it, in steps of none. The "
        "loss that workers report is made up: it falls with progress, for a guard to watch."
    )
    yield (
        "Not modelled: failures, ranks that join or leave, traffic of others beyond what the "
        "trace says, several reductions a step, and links that are not those of the ring."
    )


def of_simulation(setting: Setting, bundle: Bundle, seeds: int) -> Iterator[str]:
    """Yield what the closed loop assumes."""
    config = setting.config
    yield from _job(config)
    yield from _faults(setting, bundle)
    yield from _time(setting, bundle, seeds)
    yield from _loop(config, bundle)
    yield (
        "Not modelled: that a replacement is slower or faster, that moving changes what fails, "
        "failures of the network between healthy nodes, a checkpoint that cannot be read, and "
        "how long a policy or predictor computes beyond forecast_s."
    )


def of_replay(tested: Iterable[Forecaster], config: Config) -> Iterator[str]:
    """Yield what the open loop assumes."""
    for one in tested:
        if "model" in one.table:
            model = Model.load(Path(one.table["model"]))
            if said := other_repair(one.label, model, config.evaluate.repair_s):
                yield said
            card = model.card
            yield (
                f"{one.label}: the card of its model, beside baselines on {card.trace}, says: "
                f"{card.verdict.sentence}"
            )
    yield (
        "Nothing answers in replay: what is granted changes nothing, and without standbys in "
        "the trace a migration is denied as impossible. A proposal about a worker counts as an "
        "alarm whether it was granted or not."
    )


def _job(config: Config) -> Iterator[str]:
    evaluate, costs = config.evaluate, config.costs
    yield (
        f"The job has {evaluate.groups} groups of {evaluate.nodes_per_group} x "
        f"{evaluate.gpus_per_node} GPUs, {evaluate.standbys} warm standby groups and "
        f"{evaluate.spares} cold spare nodes; goodput is of all of them, in every arm."
    )
    yield (
        f"Detection takes {costs.detect_s:g} s, a restart {costs.restart_s:g} s, a checkpoint "
        f"{costs.checkpoint_s:g} s, one on demand {evaluate.proactive_checkpoint_s:g} s, a "
        f"migration pauses the run {costs.migrate_s:g} s, a cold spare comes after "
        f"{evaluate.provision_s:g} s, a standby is warm after {evaluate.warm_up_s:g} s, a node "
        f"that was moved away from is inspected for {evaluate.inspect_s:g} s."
    )
    if evaluate.recovery == "restart":
        yield "Any failure stops all groups; arms that say otherwise say so."
    else:
        yield "The other groups go on when one fails; arms that say otherwise say so."
        if any(getattr(evaluate, stall) for stall in STALLS):
            yield (
                f"They stand still {evaluate.join_stall_s:g} s for a group that joins them, "
                f"{evaluate.leave_stall_s:g} s for one that leaves in order, and "
                f"{evaluate.kill_stall_s:g} s for one that dies, after the step that is lost."
            )
        yield (
            "Where standbys are admitted, each does the work that every group does: the global "
            "batch grows. Goodput counts all of it, goodput as planned no more groups than planned."
        )
    if evaluate.checkpoint_interval_s > 0:
        yield (
            f"Arms that do not set an interval save after {evaluate.checkpoint_interval_s:g} s "
            f"of work."
        )
    else:
        yield (
            f"Arms that do not set an interval save at Daly's for the failures that the seed "
            f"brings, or after {INSURANCE_S:g} s where recovery is per step; where the policy "
            f"checkpoint_interval sets it, the run begins with {FIRST_INTERVAL_S:g} s, and so "
            f"saves the same job without it."
        )


def _faults(setting: Setting, bundle: Bundle) -> Iterator[str]:
    fatal = [event for event in bundle.events() if event.fatal]
    follows = Counter(event.follows for event in fatal)
    told = ", ".join(f"{count} {name}" for name, count in sorted(follows.items()))
    yield f"What the failures follow: {told or 'nothing'}."
    if follows["unknown"]:
        yield (
            "Failures of which nobody knows what they follow are taken to follow the "
            f"{setting.unknown}; taken both ways they are reported beside it."
        )
    if follows["job"] or follows["unknown"]:
        yield (
            "A failure of a job is this job's if it was seen on a node that the job has at the "
            "start; then it hits the job wherever it is."
        )
    ends = sum(event.t_resolved is None for event in fatal)
    if ends:
        repair_s = setting.config.evaluate.repair_s
        yield f"{ends} failures have no known end: their nodes are away for {repair_s:g} s."
    yield (
        "A node fails when it failed in the recording, whatever runs on it; the node that takes "
        "its place brings its own recorded failures."
    )


def _time(setting: Setting, bundle: Bundle, seeds: int) -> Iterator[str]:
    first_ns, last_ns, length_ns = span_ns(bundle, setting.config.evaluate, setting.from_ns)
    days = length_ns / DAY_NS
    yield (
        f"Each of {seeds} seeds draws {days:.4g} days and the nodes of the job from the trace, "
        f"the same for all arms. All are of this one trace, and overlap if "
        f"{seeds} x {days:.4g} is more than its {(last_ns - first_ns) / DAY_NS:.4g} days: an "
        f"interval tells what allocation and time make out, not how another fleet would fare."
    )
    if length_ns < round(setting.config.evaluate.days * DAY_NS):
        yield f"There is less trace than the {setting.config.evaluate.days:g} days asked for."
    if setting.from_ns is not None and setting.from_ns > bundle.manifest.start_ns:
        begun = (first_ns - bundle.manifest.start_ns) / DAY_NS
        yield (
            f"Runs begin no earlier than day {begun:.4g}: before it lie what the models were "
            f"fitted on, with their horizon, and the time until --until."
        )


def _loop(config: Config, bundle: Bundle) -> Iterator[str]:
    evaluate = config.evaluate
    yield (
        f"Policies look every {evaluate.tick_s:g} s, a command takes {evaluate.command_s:g} s "
        f"and a forecast {evaluate.forecast_s:g} s."
    )
    yield (
        "Policies price with half a checkpoint interval of unsaved work, or one step where "
        "recovery is per step, and no policy is stopped for taking long."
    )
    load = bundle.manifest.load_dependent
    if load:
        where = "placed" if bundle.placement() else "assumed to be placed on the first nodes"
        yield (
            f"{', '.join(load)} depend on the load: they are left out for workers that sit where "
            f"the recorded job, {where}, did not."
        )
