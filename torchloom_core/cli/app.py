"""torchLoom's own commands; each one's module is imported when it is used."""

from cyclopts import App, Group

from torchloom_core import __version__

_HERE = "torchloom_core.cli"
_CAPABILITIES = "torchloom_core.capabilities"

_RUNNING = Group("Set up and run", sort_key=0)
_WATCHING = Group("Observe and analyze", sort_key=1)
_ACTING = Group("Act on the run", sort_key=2)

app = App(
    name="torchloom",
    help="An active controller for distributed PyTorch training.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

for _name, _help in (
    ("weaver", "Run the Weaver, the daemon that watches and controls a run."),
    ("lighthouse", "Run a torchft lighthouse that drops failed groups at once."),
    ("dashboard", "Serve the dashboard: watch and control a run in a browser."),
):
    app.command(f"{_HERE}.{_name}_command:{_name}", name=_name, help=_help, group=_RUNNING)

app.command(
    "torchloom_core.demos.command:demo",
    name="demo",
    help="Watch a real torchft run lose a node without losing a step.",
    group=_RUNNING,
)

app.command(
    f"{_HERE}.init_command:init", name="init", help="Write a commented config file.", group=_RUNNING
)
app.command(
    f"{_HERE}.new_command:new",
    name="new",
    help="Write a package with a plugin and its test.",
    group=_RUNNING,
)
app.command(
    f"{_HERE}.plugins_command:plugins",
    name="plugins",
    help="List the installed policies and predictors.",
    group=_RUNNING,
)
app.command(
    f"{_HERE}.operator_command:operator",
    name="operator",
    help="Write NATS credentials for a person.",
    group=_RUNNING,
)
app.command(
    f"{_HERE}.status_command:status",
    name="status",
    help="Show the run's workers, knobs, commands and plugins.",
    group=_WATCHING,
)

app.command(
    f"{_HERE}.logs_command:logs",
    name="logs",
    help="Print the trainers' log lines.",
    group=_WATCHING,
)

app.command(
    f"{_CAPABILITIES}.landscape.command:landscape",
    name="landscape",
    help="Map the loss around the run's newest weights, on a standby.",
    group=_WATCHING,
)
app.command(
    f"{_CAPABILITIES}.preview.command:preview",
    name="preview",
    help="Try a knob change on a standby before you make it.",
    group=_WATCHING,
)
app.command(
    f"{_HERE}.evaluate_command:evaluate",
    name="evaluate",
    help="Backtest policies and predictors on recorded traces.",
    group=_WATCHING,
)
app.command(
    f"{_HERE}.fit_command:fit",
    name="fit",
    help="Fit a predictor on a trace and measure its skill.",
    group=_WATCHING,
)

_trajectory = App(
    name="trajectory",
    help="Inspect a recorded run: telemetry, decisions, commands.",
    group=_WATCHING,
)
for _name, _help in (
    ("show", "Print a run's records, oldest first."),
    ("replay", "Replay a run's inputs and compare the decisions."),
    ("export", "Export a run's records and telemetry as two Parquet tables."),
):
    _trajectory.command(f"{_HERE}.trajectory_commands:{_name}", name=_name, help=_help)
app.command(_trajectory)

_trace = App(name="trace", help="Create, validate and inspect trace bundles.", group=_WATCHING)
for _name, _module, _help in (
    ("validate", "trace_commands", "Check a bundle and print each error."),
    ("describe", "trace_commands", "Summarize a bundle: failure rates, repairs, telemetry."),
    ("synthesize", "trace_make_commands", "Generate a trace of failures and telemetry."),
    ("bandwidth", "trace_make_commands", "Generate a trace of link bandwidth."),
    ("from-trajectory", "trace_make_commands", "Convert a recorded run to a trace."),
):
    _function = _name.replace("-", "_")
    _trace.command(f"{_HERE}.{_module}:{_function}", name=_name, help=_help)
importers = App(name="import", help="Import a CSV file or a data set as a bundle.")
_trace.command(importers)
app.command(_trace)

_knob = App(name="knob", help="Show and set the run's knobs.", group=_ACTING)
for _name, _function, _help in (
    ("list", "list_knobs", "List all knobs."),
    ("get", "get_knob", "Show one knob's value on every worker."),
    ("set", "set_knob", "Set a knob on all workers that have it, or on one."),
    ("unset", "unset_knob", "Clear a knob's desired value; workers keep their current value."),
    ("take", "take_knobs", "Apply the desired values of an earlier job to this one."),
    ("drop", "drop_knobs", "Discard the desired values of an earlier job."),
):
    _knob.command(f"{_HERE}.knob_commands:{_function}", name=_name, help=_help)
app.command(_knob)

_actions = App(name="actions", help="Stop or resume all actions (kill switch).", group=_ACTING)
for _name, _help in (
    ("stop", "Stop all actions at once, including those in progress."),
    ("resume", "Allow actions again."),
):
    _actions.command(f"{_HERE}.action_commands:{_name}_actions", name=_name, help=_help)
app.command(_actions)

for _name, _help in (
    ("migrate", "Add a warm standby to the quorum, then drain a replica group."),
    ("admit", "Let a standby group join the run permanently."),
    ("drain", "Drain replica groups without a replacement."),
    ("evict", "Evict a hung replica group from the quorum."),
    ("checkpoint", "Save a checkpoint now, in one replica group or in all."),
    ("pause", "Pause training for a short time, at the next step boundary."),
    ("resume", "Resume training after a pause."),
    ("rewind", "Return all ranks to the last checkpoint, at the same step."),
    ("dump", "Collect a worker's stack traces and Flight Recorder dump."),
    ("probe", "Measure the bandwidth and latency of links between workers."),
    ("cordon", "Cordon a node: torchLoom uses no standby on it."),
    ("uncordon", "Uncordon a node: torchLoom may use its standbys again."),
):
    app.command(f"{_CAPABILITIES}.{_name}.command:{_name}", name=_name, help=_help, group=_ACTING)

for _name, _help in (
    ("approve", "Approve a pending proposal."),
    ("deny", "Deny a pending proposal."),
    ("annotate", "Add an annotation to the run's record."),
):
    app.command(f"{_HERE}.action_commands:{_name}", name=_name, help=_help, group=_ACTING)
