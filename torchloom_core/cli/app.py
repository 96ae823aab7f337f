"""Which commands there are, and which module each is loaded from when it is used."""

from importlib.util import find_spec

from cyclopts import App, Group

from torchloom_core import __version__

_HERE = "torchloom_core.cli"

_RUNNING = Group("Run it", sort_key=0)
_WATCHING = Group("See what happens", sort_key=1)
_ACTING = Group("Act on the run", sort_key=2)

app = App(
    name="torchloom",
    help="An active controller for distributed PyTorch training.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

for _name, _help in (
    ("weaver", "Run the Weaver, the controller daemon."),
    ("lighthouse", "Run torchft's lighthouse, active: leavers and the dead are out at once."),
    ("dashboard", "Serve the dashboard: see and drive the run in a browser."),
    ("demo", "Watch a real torchft run lose a node without losing a step."),
):
    if find_spec(f"{_HERE}.{_name}_command"):
        app.command(f"{_HERE}.{_name}_command:{_name}", name=_name, help=_help, group=_RUNNING)

app.command(
    f"{_HERE}.init_command:init", name="init", help="Write a commented config.", group=_RUNNING
)
app.command(
    f"{_HERE}.plugins_command:plugins",
    name="plugins",
    help="List the policies and predictors that are installed.",
    group=_RUNNING,
)
app.command(
    f"{_HERE}.operator_command:operator",
    name="operator",
    help="Write credentials for one more person.",
    group=_RUNNING,
)
app.command(f"{_HERE}.status_command:status", name="status", help="Show the run.", group=_WATCHING)

app.command(
    f"{_HERE}.logs_command:logs",
    name="logs",
    help="Print what trainers have logged.",
    group=_WATCHING,
)

app.command(
    f"{_HERE}.landscape_command:landscape",
    name="landscape",
    help="Look at the loss around the run's newest weights, on a standby.",
    group=_WATCHING,
)
app.command(
    f"{_HERE}.preview_command:preview",
    name="preview",
    help="Try a change out on a standby, before anybody makes it.",
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
    help="Fit a predictor on a trace, and say what it is worth.",
    group=_WATCHING,
)

_trajectory = App(
    name="trajectory", help="Look back: what was seen, decided and done.", group=_WATCHING
)
for _name, _help in (
    ("show", "Print what happened, oldest first."),
    ("replay", "Decide everything again and see whether it comes out the same."),
    ("export", "Write the trajectory as two Parquet tables."),
):
    _trajectory.command(f"{_HERE}.trajectory_commands:{_name}", name=_name, help=_help)
app.command(_trajectory)

_trace = App(name="trace", help="Make, check and look at trace bundles.", group=_WATCHING)
for _name, _module, _help in (
    ("validate", "trace_commands", "Find everything that is wrong with a bundle."),
    ("describe", "trace_commands", "Show what is in a bundle."),
    ("synthesize", "trace_make_commands", "Write a synthetic trace."),
    ("bandwidth", "trace_make_commands", "Write a synthetic trace of links that change."),
    ("from-trajectory", "trace_make_commands", "Write one life of a Weaver as a trace."),
):
    _function = _name.replace("-", "_")
    _trace.command(f"{_HERE}.{_module}:{_function}", name=_name, help=_help)
_import = App(name="import", help="Make a bundle of what others recorded.")
for _name, _help in (
    ("csv", "Faults of your own, a row an event."),
    ("infinitehbd", "InfiniteHBD-Trace: faults of 400 GPU servers."),
    ("backblaze", "Backblaze Hard Drive Data: daily SMART values."),
):
    _import.command(f"{_HERE}.trace_commands:import_{_name}", name=_name, help=_help)
_trace.command(_import)
app.command(_trace)

_knob = App(name="knob", help="See and turn the run's knobs.", group=_ACTING)
for _name, _function, _help in (
    ("list", "list_knobs", "List all knobs."),
    ("get", "get_knob", "Show one knob on every worker."),
    ("set", "set_knob", "Set a knob, on all workers that have it or on one."),
    ("unset", "unset_knob", "Want no value of a knob any more."),
    ("take", "take_knobs", "Set here what was set in an earlier job."),
    ("drop", "drop_knobs", "Drop what was set in an earlier job."),
):
    _knob.command(f"{_HERE}.knob_commands:{_function}", name=_name, help=_help)
app.command(_knob)

_actions = App(name="actions", help="The kill switch.", group=_ACTING)
for _name, _help in (
    ("stop", "Stop all actions at once, also those under way."),
    ("resume", "Let the Weaver act again."),
):
    _actions.command(f"{_HERE}.action_commands:{_name}_actions", name=_name, help=_help)
app.command(_actions)

for _name, _help in (
    ("migrate", "Let a warm standby join, then drain a replica group."),
    ("admit", "Let a standby group join the run for good."),
    ("drain", "Drain replica groups without a replacement."),
    ("evict", "Free the others of a replica group that hangs."),
    ("checkpoint", "Save a checkpoint now, in one replica group or in all."),
    ("pause", "Pause training at the next step boundary."),
    ("resume", "Go on after a pause."),
    ("rewind", "Go back to the last checkpoint, all ranks at one step."),
    ("dump", "Collect a worker's stacks and Flight Recorder dump."),
    ("probe", "Measure links between workers."),
    ("cordon", "Put nobody new on a node."),
    ("uncordon", "Let workers be put on a node again."),
    ("approve", "Approve a proposal that waits for a person."),
    ("deny", "Deny a proposal that waits for a person."),
    ("annotate", "Add an annotation to the run's record."),
):
    app.command(f"{_HERE}.action_commands:{_name}", name=_name, help=_help, group=_ACTING)
