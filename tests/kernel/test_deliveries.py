"""A person gets one notice when an effector fails, and one when it works again."""

from tests.kernel.runs import Run, make_kernel
from torchloom_core.wire.events import DeliveryStatus


def test_a_notice_comes_with_each_change_and_not_with_each_result():
    run = Run(make_kernel())
    texts = [
        [
            (output.kind, output.text)
            for output in run.feed(
                DeliveryStatus(effector="pager", delivery=f"e1.{n}.1", result=result, detail="down")
            )
        ]
        for n, result in enumerate(
            ("delivered", "retrying", "given_up", "dropped", "dropped", "delivered", "dry_run")
        )
    ]
    assert texts == [
        [],
        [("effector", "effector pager: e1.1.1 retrying: down")],
        [("effector", "effector pager: e1.2.1 given up: down")],
        [("effector", "effector pager: e1.3.1 dropped: down")],
        [],
        [("effector", "effector pager works again")],
        [],
    ]
