"""Links are probed in a whole run: by a person, through a Weaver, between two sidecars."""

import re

import pytest

pytestmark = pytest.mark.integration

HERE = "127.0.0.1"


@pytest.mark.long
def test_a_person_has_a_link_measured_and_the_next_weaver_knows_it(start_run, until):
    run = start_run("[weaver]\nstate_dir = 'state'\ntick_s = 0.2\n")
    run.start_weaver()
    for group in ("g0", "g1"):
        run.start_light(group, TORCHLOOM_LINK_ADDRESS=HERE)
    run.start_light("g2")
    run.training("g0", "g1", "g2")

    def takes_probes():
        return {hello["worker"] for _, hello in run.records("hello") if hello["probe_address"]}

    until(lambda: takes_probes() == {"g0-0", "g1-0"})
    result = run.torchloom("probe", "g0-0", "g1-0")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^done: g0-0 -> g1-0: \S+ .*B/s.*, \S+ ms$", result.stdout, re.MULTILINE)

    refused = run.torchloom("probe", "g0-0", "g2-0")
    assert "worker g2-0 cannot be probed: need TORCHLOOM_LINK_ADDRESS" in refused.stderr

    run.kill_weaver()
    run.start_weaver()
    until(lambda: len(run.records("recovered")) == 2)
    (link,) = run.records("recovered")[-1][1]["control"]["links"]
    assert (link["sender"], link["receiver"]) == ("g0-0", "g1-0")
    assert link["measured"]["bytes_per_s"] > 0
    replayed = run.torchloom("trajectory", "replay")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
