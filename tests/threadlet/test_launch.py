"""A process knows the launch that it belongs to, and reports it to its Weaver."""

import pytest

from torchloom_core.wire.messages import Hello
from torchloom_threadlet.launch import launch_of

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_ab/none_cd/attempt_0/0/error.json",
}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}


def after(start, **changes):
    return start | changes


@pytest.mark.parametrize(
    "again",
    [
        after(
            TORCHRUN,
            TORCHELASTIC_RESTART_COUNT="1",
            TORCHELASTIC_ERROR_FILE="/tmp/torchelastic_ab/none_cd/attempt_1/1/error.json",
        ),
        after(TORCHRUN, RANK="1"),
    ],
)
def test_a_restart_by_the_same_torchrun_is_the_same_launch(again):
    assert launch_of(again) == launch_of(TORCHRUN)


@pytest.mark.parametrize(
    ("first", "second", "resumes"),
    [
        (TORCHRUN, after(TORCHRUN, TORCHELASTIC_ERROR_FILE="/x/none_ef/attempt_0/0/e"), False),
        (SLURM, after(SLURM, SLURM_STEP_ID="1"), False),
        (SLURM, after(SLURM, SLURM_JOB_ID="8"), False),
        (SLURM, after(SLURM, SLURM_RESTART_COUNT="1"), True),
        ({"TORCHLOOM_JOB": "a"}, {"TORCHLOOM_JOB": "b"}, False),
        (TORCHRUN, {}, None),
    ],
)
def test_another_launch_has_another_id_and_reports_whether_it_resumes(first, second, resumes):
    again = launch_of(second)
    assert again.id != launch_of(first).id
    assert again.resumes is resumes


def test_a_named_job_is_the_same_with_any_launcher():
    assert launch_of({"TORCHLOOM_JOB": "a"} | TORCHRUN) == launch_of({"TORCHLOOM_JOB": "a"} | SLURM)


@pytest.mark.long
@pytest.mark.integration
async def test_without_a_launcher_the_first_step_shows_whether_a_checkpoint_was_loaded(
    weaver, start_trainer
):
    start_trainer()
    hello = await weaver.event(Hello, resumes=False)
    assert hello.launch
