"""Population-based training whose trials are mutated in place, without a restart."""

import logging
import random
from functools import partial
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pbt import _filter_mutated_params_from_config, _make_experiment_tag

from torchloom_threadlet.adapters.ray.member import give, take

_logger = logging.getLogger(__name__)


class TorchLoomPBT(PopulationBasedTraining):  # type: ignore[misc]  # Ray has no types here
    """Tune's PopulationBasedTraining, which decides the same, but restarts no trial.

    It takes the same arguments, and draws the same random numbers. A trial of the lower quantile
    loads the weights of one of the upper and takes new values between two steps, in its running
    process; each trial has a :class:`~torchloom_threadlet.adapters.ray.Member`. All trials need
    a place at the same time. With ``synch=True`` those that wait for others keep their processes.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held: list[Trial] = []
        self._has_warned = False

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Mutate trials as Tune's own decides; hold one that waits for others in its report."""
        due = self._next_perturbation_sync
        decision: str = super().on_trial_result(tune_controller, trial, result)
        if decision != TrialScheduler.PAUSE:
            return decision
        if not self._synch:  # Tune's own makes room for trials that have no place
            self._warn_of_places(tune_controller)
            return str(TrialScheduler.CONTINUE)
        if self._next_perturbation_sync == due:  # others are not at the perturbation yet
            self._held.append(trial)
            self._warn_of_places(tune_controller)
            return str(TrialScheduler.NOOP)
        self._release(tune_controller)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Release trials that wait for this one alone."""
        super().on_trial_complete(tune_controller, trial, result)
        self._leave_out(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Release trials that wait for this one alone."""
        super().on_trial_error(tune_controller, trial)
        self._leave_out(tune_controller, trial)

    def _leave_out(self, tune_controller: Any, trial: Trial) -> None:
        others = {one for one in tune_controller.get_live_trials() if one is not trial}
        if self._held and others <= set(self._held):
            self._next_perturbation_sync += self._perturbation_interval
            self._release(tune_controller)

    def _release(self, tune_controller: Any) -> None:
        held, self._held = self._held, []
        for trial in held:
            if trial.status == Trial.RUNNING:
                tune_controller._schedule_trial_train(trial)

    def _warn_of_places(self, tune_controller: Any) -> None:
        waiting = sum(one.status == Trial.PENDING for one in tune_controller.get_trials())
        if waiting and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "TorchLoomPBT: %d trials have not started: if they wait for a place, change their "
                "number or resources: all need one at the same time",
                waiting,
            )

    def _checkpoint_or_exploit(
        self,
        trial: Trial,
        tune_controller: Any,
        upper_quantile: list[Trial],
        lower_quantile: list[Trial],
    ) -> None:
        state = self._trial_state[trial]
        state.last_checkpoint = None
        if trial in upper_quantile:
            state.last_checkpoint = tune_controller._schedule_trial_task(
                trial, "execute", args=(give,), _return_future=True
            )
            self._num_checkpoints += 1
        if trial in lower_quantile:
            better = random.choice(upper_quantile)  # as Tune's own draws
            if self._trial_state[better].last_checkpoint is not None:
                self._exploit(tune_controller, trial, better)

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        state, better = self._trial_state[trial], self._trial_state[trial_to_clone]
        config, _ = self._get_new_config(trial, trial_to_clone)
        values = _filter_mutated_params_from_config(config, self._hyperparam_mutations)
        _logger.info("%s takes over %s, with %s", trial, trial_to_clone, values)
        if self._log_config:
            self._log_config_on_step(state, better, trial, trial_to_clone, config)
        trial.set_experiment_tag(
            _make_experiment_tag(state.orig_tag, config, self._hyperparam_mutations)
        )
        trial.set_config(config)
        tune_controller._schedule_trial_task(
            trial, "execute", args=(partial(take, values=values, given=better.last_checkpoint),)
        )
        self._num_perturbations += 1
        state.last_perturbation_time = better.last_perturbation_time
        state.last_train_time = better.last_train_time
