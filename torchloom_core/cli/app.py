"""torchLoom's own commands; each one's module is imported when it is used.

Those of capabilities are found: see :mod:`torchloom_core.cli.installed_commands`.
"""

from cyclopts import App, Group

from torchloom_core import __version__

_HERE = "torchloom_core.cli"

RUNNING = Group("Set up and run", sort_key=0)
_WATCHING = Group("Observe and analyze", sort_key=1)
_ACTING = Group("Act on the run", sort_key=2)

app = App(
    name="torchloom",
    help="An active controller for distributed PyTorch training.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

for _name, _group, _help in (
    ("weaver", RUNNING, "Run the Weaver, the daemon that watches and controls a run."),
    ("lighthouse", RUNNING, "Run a torchft lighthouse that drops failed groups at once."),
    ("lighthouse-relay", RUNNING, "Lead one address to the lighthouse that serves now."),
    ("rendezvous", RUNNING, "Keep a pipeline's workers together when one is lost or joins."),
    ("rollout-queue", RUNNING, "Hold rollouts and weights between two roles of a run."),
    ("dashboard", RUNNING, "Serve the dashboard: watch and control a run in a browser."),
    ("doctor", RUNNING, "Check a host's set-up, and say what to change."),
    ("deploy", RUNNING, "Write files to run a Weaver: systemd, Docker, Slurm, torchx, Helm."),
    ("init", RUNNING, "Write a commented config file."),
    ("new", RUNNING, "Write a package with a plugin, a capability or an adapter."),
    ("plugins", RUNNING, "List the installed policies, predictors and effectors."),
    ("status", _WATCHING, "Show the run's workers, knobs, commands and plugins."),
    ("plan", _WATCHING, "Show a pipeline's assignment, and what would follow on a loss."),
    ("logs", _WATCHING, "Print the trainers' log lines."),
    ("recovery", _WATCHING, "Show where the time of each recovery went, phase by phase."),
    ("evaluate", _WATCHING, "Backtest policies and predictors on recorded traces."),
    ("fit", _WATCHING, "Fit a predictor on a trace and measure its skill."),
):
    _module = _name.replace("-", "_")
    app.command(f"{_HERE}.{_module}_command:{_module}", name=_name, help=_help, group=_group)

app.command(
    "torchloom_core.demos.command:demo",
    name="demo",
    help="Watch a real torchft run lose a node without losing a step.",
    group=RUNNING,
)
app.command(
    "torchloom_core.capabilities.gate.command:gate",
    name="gate",
    help="Check benchmark results of nodes, and cordon those that are off.",
    group=_ACTING,
)

_credentials = App(
    name="credentials", help="Create, list and revoke credentials of a run.", group=RUNNING
)
for _name, _function, _help in (
    ("create", "create", "Write NATS credentials for a person."),
    ("list", "list_credentials", "List who has credentials."),
    ("revoke", "revoke", "Revoke credentials at once."),
):
    _credentials.command(f"{_HERE}.credentials_commands:{_function}", name=_name, help=_help)
app.command(_credentials)

_trajectory = App(
    name="trajectory",
    help="Inspect a recorded run: telemetry, decisions, commands.",
    group=_WATCHING,
)
for _name, _module, _help in (
    ("show", "trajectory_commands", "Print a run's records, oldest first."),
    ("replay", "trajectory_commands", "Replay a run's inputs and compare the decisions."),
    ("du", "trajectory_space_commands", "Show the bytes of a run's records by epoch and kind."),
    ("prune", "trajectory_space_commands", "Thin old telemetry; decisions are kept."),
    ("export", "trajectory_space_commands", "Export a run to Parquet, here or in a store."),
):
    _trajectory.command(f"{_HERE}.{_module}:{_name}", name=_name, help=_help)
app.command(_trajectory)

_tls = App(name="tls", help="Make and renew certificates of a cluster's hosts.", group=RUNNING)
for _name, _help in (
    ("init", "Make a CA, and a certificate for each host."),
    ("renew", "Renew the hosts' certificates, or the CA."),
):
    _tls.command(f"{_HERE}.tls_commands:{_name}", name=_name, help=_help)
app.command(_tls)

_broker = App(name="broker", help="Run a host's server of a cluster.", group=RUNNING)
for _name, _help in (
    ("keys", "Make the keys that all hosts of a cluster share."),
    ("run", "Run this host's nats-server without a Weaver."),
):
    _broker.command(f"{_HERE}.broker_commands:{_name}", name=_name, help=_help)
app.command(_broker)

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

_metrics = App(
    name="metrics", help="Show the run in Prometheus, Grafana, TensorBoard or W&B.", group=RUNNING
)
for _name, _help in (
    ("rules", "Write the alert rules for Prometheus."),
    ("dashboard", "Write the dashboard for Grafana."),
):
    _metrics.command(f"{_HERE}.metrics_commands:{_name}", name=_name, help=_help)
_metrics.command(
    f"{_HERE}.metrics_tracking:track",
    name="track",
    help="Write knobs, verdicts and goodput to TensorBoard or Weights & Biases.",
)
app.command(_metrics)

_notify = App(name="notify", help="Messages of the run to people.", group=RUNNING)
_notify.command(
    f"{_HERE}.notify_command:send_test",
    name="test",
    help="Send a test message by the config's channels.",
)
app.command(_notify)

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
    ("approve", "Approve a pending proposal."),
    ("deny", "Deny a pending proposal."),
    ("annotate", "Add an annotation to the run's record."),
):
    app.command(f"{_HERE}.action_commands:{_name}", name=_name, help=_help, group=_ACTING)
