"""What people ask of the kernel: actions, approvals, the kill switch."""

from collections.abc import Callable

from torchloom_core.floor.suggest import listed
from torchloom_core.live.dispatch.answers import Answers, answer_to
from torchloom_core.live.dispatch.control_lease import ControlLease
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.arbiter import Arbiter
from torchloom_core.live.kernel.decider import Decider
from torchloom_core.live.kernel.execution import Execution
from torchloom_core.live.kernel.upkeep import Upkeep
from torchloom_core.wire.actions import Action
from torchloom_core.wire.decisions import Output, Reply
from torchloom_core.wire.plans import ACTIONS_STOPPED
from torchloom_core.wire.requests import (
    PERSON,
    Approve,
    Deny,
    ForgetKnob,
    Propose,
    Request,
    ResumeActions,
    StopActions,
)


class Requests:
    """Answers each request once; ``withdraw_lapsed`` withdraws a proposal its policy gave up."""

    def __init__(
        self,
        run: Run,
        arbiter: Arbiter,
        execution: Execution,
        upkeep: Upkeep,
        decider: Decider,
        withdraw_lapsed: Callable[[str], list[Output]],
    ) -> None:
        self._run = run
        self._arbiter = arbiter
        self._execution = execution
        self._upkeep = upkeep
        self._decider = decider
        self._withdraw_lapsed = withdraw_lapsed
        self.answers = Answers()
        self.control_lease = ControlLease()

    def answer(self, request: Request) -> list[Output]:
        """Return the outputs of a request; a repeated one gets the same reply and no more."""
        if (repeated := self.answers.repeated(request)) is not None:
            return [repeated]
        outputs = self._grant(request)
        for output in outputs:
            if isinstance(output, Reply):
                self.answers.store(request, output)
        return outputs

    def _grant(self, request: Request) -> list[Output]:
        if (answered := self.control_lease.answer(request, self._run.now_ns)) is not None:
            return answered
        match request.want:
            case StopActions():
                self._run.switch.stop()
                paused = "; the pause is ended" if self._run.pauses.verdict else ""
                count = len(self._run.plans.table)
                outputs = self._decider.note_failures(self._execution.abandon_all(ACTIONS_STOPPED))
                text = f"actions are stopped; {count} under way called off{paused}"
                if waiting := len(self._run.plans.table):
                    text += f"; {waiting} of them end once their workers have answered"
                return [*outputs, Reply(request=request.id, ok=True, text=text)]
            case ResumeActions():
                self._run.switch.resume()
                reply = Reply(request=request.id, ok=True, text="actions are resumed")
                return [*self._upkeep.reconcile(self._run.fleet.hello), reply]
            case Approve(proposal=proposal_id) | Deny(proposal=proposal_id):
                if proposal_id not in self._arbiter.waiting:
                    text = f"no proposal {proposal_id!r} waits for approval"
                    return [Reply(request=request.id, ok=False, text=text)]
                return self._decide_waiting(request, proposal_id)
            case ForgetKnob(knob=knob, worker=worker, role=role):
                roles = self._run.desired.roles(knob)
                if not (role or worker) and len(roles) > 1:
                    text = f"the roles {listed(roles)} have desired values: name one with --role"
                    return [Reply(request=request.id, ok=False, text=text)]
                forgotten = self._run.desired.forget(knob, worker, role or "")
                text = f"{knob} has no desired value now; workers keep their present values"
                if not forgotten:
                    text = f"{knob} had no desired value{f' on {worker}' if worker else ''}"
                return [*forgotten, Reply(request=request.id, ok=bool(forgotten), text=text)]
            case Propose(action=action, sure=sure):
                if not sure and (warning := self._warning(action)):
                    return [Reply(request=request.id, ok=False, text=warning)]
                outputs = self._decider.propose(action, PERSON, f"requested by {request.requester}")
                return [*outputs, answer_to(request, outputs, self._run.plans.table)]
        raise TypeError(f"need a request to the kernel, was {request.want}")

    def _decide_waiting(self, request: Request, proposal_id: str) -> list[Output]:
        """Approve or deny a waiting proposal; one that its policy gave up is withdrawn instead."""
        if isinstance(request.want, Deny):
            why = f"denied by {request.requester}"
            why += f": {request.want.reason}" if request.want.reason else ""
            text = f"{proposal_id} is denied"
            denied = self._arbiter.refuse(proposal_id, why, self._run.now_ns)
            return [denied, Reply(request=request.id, ok=True, text=text)]
        outputs = self._withdraw_lapsed(proposal_id)
        if proposal_id in self._arbiter.waiting:
            verdict = self._arbiter.approve(
                proposal_id, request.requester, self._decider.situation, self._run.now_ns
            )
            outputs += [verdict, *self._decider.carry_out(verdict)]
        return [*outputs, answer_to(request, outputs, self._run.plans.table)]

    def _warning(self, action: Action) -> str:
        """Return why a person should confirm an action, or an empty string."""
        if kind_of(action).obstacle(action, self._run):
            return ""
        warning = kind_of(action).warning(action, self._run)
        return f'{warning}; to set it anyway: --yes ("sure": true)' if warning else ""
