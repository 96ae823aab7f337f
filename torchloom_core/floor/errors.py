"""Every error torchLoom raises on purpose.

::

    TorchloomError
    ├── ConfigError          torchloom.toml or an option is wrong
    ├── MessageError         bytes from the wire are no message of ours
    ├── KnobError            a knob is unknown, of the wrong type, or out of range
    ├── PluginError          a plugin cannot be loaded, or breaks its contract
    ├── BrokerError          no usable nats-server, or it is unreachable
    │   └── RefusedByBrokerError  the server rejects what was to be stored or sent
    ├── StateError           the state folder or a trajectory cannot be read or written
    │   ├── SupersededError  another Weaver has taken over the run
    │   ├── RunHeldError     another Weaver controls the run, or uses the state folder
    │   ├── OvertakenError   an earlier Weaver took over after this one had read the state
    │   └── OutrankedError   workers have obeyed a higher epoch than this Weaver's
    ├── TraceError           a trace bundle, or the data for one, breaks a rule
    ├── CheckpointError      a checkpoint cannot be saved, read or verified
    ├── ModelError           a fitted model cannot be read, or does not fit its use
    ├── LeakError            a score would use information from the future
    ├── WorkerLost           a process that simulates runs ended
    ├── KernelFailure        the Weaver's own code failed at an input
    ├── DashboardError       the dashboard cannot be served as configured
    ├── PipelineError        a pipeline cannot go on: a layer is lost, or a worker is refused
    ├── RolloutError         the rollout queue is not reached, or refuses what it is sent
    ├── LighthouseError      a lighthouse cannot listen, or its state cannot be used
    └── RequestError         the Weaver refused, or did not answer, an operator's request

The command line prints the message of a :class:`TorchloomError` as one line and exits with
its ``exit_code``, and does the same if the system refuses a file or has no memory left; any
other exception is a bug and shows its traceback. An expected refusal (a verdict, a rejected
command) is a message, not an exception.
"""


class TorchloomError(Exception):
    """Base of all errors that a user can cause; the message has the place, rule and value."""

    exit_code = 1


class ConfigError(TorchloomError):
    """The configuration breaks a rule.

    Examples
    --------
    A policy that cannot do what its options say refuses them, and the Weaver does not start:

    >>> from torchloom_core.plugin import ConfigError
    >>> raise ConfigError("policies.hot: need clear < limit, was 95 and 90")
    Traceback (most recent call last):
    torchloom_core.floor.errors.ConfigError: policies.hot: need clear < limit, was 95 and 90
    """

    exit_code = 2


class MessageError(TorchloomError):
    """Received bytes are not a valid message."""


class KnobError(TorchloomError):
    """A knob does not exist or does not take this value."""

    exit_code = 2


class PluginError(TorchloomError):
    """A plugin cannot be loaded or breaks its contract.

    Examples
    --------
    A predictor without data to learn from raises in ``fit``:

    >>> from torchloom_core.plugin import PluginError
    >>> raise PluginError("fan_stopped: need a failure to learn from, was none")
    Traceback (most recent call last):
    torchloom_core.floor.errors.PluginError: fan_stopped: need a failure to learn from, was none
    """

    exit_code = 2


class BrokerError(TorchloomError):
    """No usable nats-server, or the server cannot be reached."""

    exit_code = 3


class RefusedByBrokerError(BrokerError):
    """The server rejects what was to be stored or sent; a retry is useless."""


class StateError(TorchloomError):
    """The state folder or a trajectory cannot be read or written."""

    exit_code = 4


class SupersededError(StateError):
    """Another Weaver has taken over the run."""

    exit_code = 13


class RunHeldError(StateError):
    """Another Weaver controls the run, or uses the state folder; nothing was changed."""

    exit_code = 13


class OvertakenError(StateError):
    """A Weaver of an earlier epoch took over meanwhile: the state has to be read again."""


class OutrankedError(StateError):
    """Workers have obeyed a Weaver of a higher epoch than this one's; ``epoch`` is that one."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class TraceError(TorchloomError):
    """A trace bundle, or the data for one, breaks a rule."""

    exit_code = 6


class CheckpointError(TorchloomError):
    """A checkpoint cannot be saved, read or verified."""


class ModelError(TorchloomError):
    """A fitted model cannot be read or written, or does not fit its use.

    Examples
    --------
    A predictor that cannot be restored from its parts raises:

    >>> from torchloom_core.lab.learning import part_of
    >>> part_of({}, "trees.skops")
    Traceback (most recent call last):
    torchloom_core.floor.errors.ModelError: trees.skops: need this part of a fitted model, was none
    """

    exit_code = 7


class LeakError(TorchloomError):
    """A score would use information from the future; the message names the leak."""

    exit_code = 8


class WorkerLost(TorchloomError):
    """A process that simulates runs of an evaluation was killed, or had no memory left."""

    exit_code = 9


class KernelFailure(TorchloomError):
    """The Weaver's own code failed at an input; the next Weaver skips that input."""

    exit_code = 10


class AssignmentError(TorchloomError):
    """Raised for an assignment that leaves out a part, or names one twice."""


class PipelineError(TorchloomError):
    """A pipeline cannot go on: all workers with a layer have ended, or this worker is refused."""


class RolloutError(TorchloomError):
    """The rollout queue cannot be reached in time, or refuses a batch or weights."""


class LighthouseError(TorchloomError):
    """A lighthouse cannot listen, or its state cannot be used."""

    exit_code = 11


class DashboardError(TorchloomError):
    """The dashboard cannot be served as configured."""

    exit_code = 12


class RequestError(TorchloomError):
    """The Weaver refused an operator's request or did not answer it."""

    exit_code = 5
