"""An actor of Monarch that trains alone, whose endpoint fails when a knob says so."""

import contextlib
import time

from monarch.actor import Actor, ActorError, endpoint, this_host

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.monarch import attach, training


class Steps(Actor):
    fails = False

    @endpoint
    @training
    async def train(self):
        loom = attach()
        loom.knob(
            "fails", lambda: self.fails, lambda value: setattr(self, "fails", value), kind="bool"
        )
        while True:  # after a drain, a step ends the endpoint
            loom.step()
            if self.fails:
                self.fails = False
                raise RuntimeError("no more data")
            time.sleep(0.01)  # noqa: ASYNC251 - as a step that computes


if __name__ == "__main__":
    with contextlib.suppress(ConfigError):
        attach()
    actor = this_host().spawn_procs(per_host={"w": 1}).spawn("steps", Steps)
    with contextlib.suppress(ActorError):
        actor.train.call_one().get()
    actor.train.call_one().get()
