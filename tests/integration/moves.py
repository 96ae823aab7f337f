"""A run with torchLoom's own lighthouse, whose replica groups join and leave."""

import json
import os
import signal

import psutil

CONFIG = """
[weaver]
tick_s = 0.2
state_dir = "state"

[lighthouse]
port = 0
status_port = 0
join_timeout_s = 20.0

[arbiter]
max_in_motion_share = 1.0
cooldown_s = 0.0
[arbiter.breaker]
max_moved_share = 1.0
"""


class Moves:
    """A run with its own lighthouse, whose groups join and leave."""

    def __init__(self, run, until):
        self.run = run
        self.until = until

    @property
    def lighthouse(self):
        return json.loads((self.run.state / "lighthouse" / "lighthouse.json").read_text())

    def start(self, *groups, standby=False, **environment):
        url = f"http://127.0.0.1:{self.lighthouse['port']}"
        role = {"TORCHLOOM_ROLE": "standby"} if standby else {}
        return [self.run.start_torchft(group, url, **role, **environment) for group in groups]

    def in_state(self, state, *groups):
        workers = {f"{group}-0" for group in groups}

        def are():
            rows = self.run.ask("status")["workers"]
            return workers <= {row["worker"] for row in rows if row["state"] == state}

        self.until(are)

    def migrate(self, group):
        self.ask(kind="migrate", group=group)

    def ask(self, **action):
        reply = self.run.ask("propose", {"action": action})
        assert reply["ok"], reply

    def outcomes(self, group):
        return [
            body
            for _, body in self.run.records("outcome")
            if body["action"] == {"kind": "migrate", "group": group}
        ]

    def is_done(self, group):
        (outcome,) = self.until(lambda: self.outcomes(group))
        assert outcome["result"] == "done", outcome

    def close(self):
        """End everything, the lighthouse too, which outlives the Weaver."""
        pid = self.lighthouse["pid"]
        self.run.close()
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
