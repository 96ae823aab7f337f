"""From a proposal to its verdict and plan, and from a command's end to its plan's next stage."""

from collections.abc import Iterable

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.arbiter import Arbiter
from torchloom_core.live.kernel.execution import Execution
from torchloom_core.live.kernel.situation import Situation
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import AckStatus
from torchloom_core.wire.decisions import Outcome, Output, Proposal, Proposed, Verdict


class Decider:
    """The arbiter and the execution of its grants, as one step after the other."""

    def __init__(self, run: Run, arbiter: Arbiter, execution: Execution) -> None:
        self._run = run
        self._arbiter = arbiter
        self._execution = execution
        self.situation = Situation(run)
        self._numbered = 0

    def propose(self, action: Action, policy: str, reason: str) -> list[Output]:
        """Propose an action at its default price, and carry it out if it is granted."""
        price_gpu_s = kind_of(action).price_gpu_s(action, self._run)
        proposal = Proposal(action=action, reason=reason, cost_gpu_s=price_gpu_s)
        proposed = Proposed(id=self.number("p"), policy=policy, proposal=proposal)
        return [proposed, *self.decide([Candidate(proposed, "act", self._run.now_ns)])]

    def decide(self, candidates: Iterable[Candidate]) -> list[Output]:
        """Return the verdicts, and the outputs of the plans that are granted."""
        outputs: list[Output] = []
        for verdict in self._arbiter.decide(candidates, self.situation, self._run.now_ns):
            outputs.append(verdict)
            outputs += self.carry_out(verdict)
        return outputs

    def carry_out(self, verdict: Verdict) -> list[Output]:
        """Start the plan of a verdict, if it is granted."""
        if not verdict.granted:
            return []
        outputs = self.note_failures(self._execution.supersede(verdict))
        outputs += kind_of(verdict.action).granted(verdict.action, self._run)
        return outputs + self.note_failures(self._execution.start(verdict))

    def settle(self, command_id: str, why: str, status: AckStatus = "expired") -> list[Output]:
        """End a command that gets no ack, and advance its plan."""
        command = self._run.commands.flights[command_id].command
        outputs = self._run.commands.settle(command_id, status, why)
        self._execution.settled(command, status, why)
        return outputs + self.advance(command.cause)

    def advance(self, verdict: str) -> list[Output]:
        """Advance a plan, and the plans that wait for a standby."""
        return self.note_failures(self._execution.advance(verdict))

    def note_failures(self, outputs: list[Output]) -> list[Output]:
        """Return the outputs, and what undoing the desired values of failed plans adds."""
        withdrawn: list[Output] = []
        for output in outputs:
            if isinstance(output, Outcome) and output.result != "done":
                if output.verdict not in self._execution.called_off:
                    self._arbiter.failed(output.verdict)
                if output.result == "undone":
                    began_ns = self._run.now_ns - round(output.took_s * SECOND_NS)
                    withdrawn += kind_of(output.action).undone(output.action, began_ns, self._run)
        return outputs + withdrawn

    def number(self, prefix: str) -> str:
        """Return the next id of a proposal or forecast."""
        self._numbered += 1
        return f"{prefix}{self._run.commands.epoch}.{self._numbered}"
