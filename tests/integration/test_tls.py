"""A run by TLS: Weaver, sidecars, people, and a lighthouse behind a relay."""

import contextlib
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.certificates import issued
from tests.integration.conftest import until
from tests.nats_servers import free_ports, nats_server
from tests.waiting import until as wait_until

pytestmark = pytest.mark.integration

STATE = "[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n"
SECOND = timedelta(seconds=1)
RELAY = (sys.executable, "-m", "torchloom_core.cli", "lighthouse-relay")


def keys(files):
    return "".join(f"{name} = '{getattr(files, name)}'\n" for name in ("certificate", "key", "ca"))


def test_a_knob_is_set_by_tls_and_a_person_without_the_ca_is_refused(start_run, tmp_path):
    _, files = issued(tmp_path / "tls")
    run = start_run(f"{STATE}[broker]\n{keys(files)}")
    run.start_weaver()
    assert run.broker["url"].startswith("tls://")
    trainer = run.start_light("g0")
    until(lambda: run.torchloom("knob", "set", "x", "2", "--yes").returncode == 0)
    until(lambda: [row["value"] for row in trainer.journal("set")])
    run.config.write_text(f"[run]\nname = 'live'\n{STATE}")
    wrong = run.torchloom("status")
    assert wrong.returncode == 3
    assert "the certificate is not signed by a CA that this system trusts" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


@pytest.mark.long
def test_a_server_of_your_own_asks_for_certificates(start_run, tmp_path):
    _, files = issued(tmp_path / "tls")
    tls = f'tls {{ cert_file: "{files.certificate}", key_file: "{files.key}", '
    tls += f'ca_file: "{files.ca}", verify: true }}\n'
    with nats_server(tmp_path / "server", tls) as (_, address):
        url = f"url = 'tls://{address}'\n"
        run = start_run(f"{STATE}[broker]\n{url}{keys(files)}")
        run.start_weaver()
        trainer = run.start_light("g0")
        until(lambda: run.torchloom("knob", "set", "x", "2", "--yes").returncode == 0)
        until(lambda: [row["value"] for row in trainer.journal("set")])
        run.config.write_text(f"[run]\nname = 'live'\n{STATE}[broker]\n{url}ca = '{files.ca}'\n")
        none = run.torchloom("status")
        assert "requires a client's certificate: set certificate and key" in none.stderr
        _, other = issued(tmp_path / "other")
        of_another = keys(other._replace(ca=files.ca))
        run.config.write_text(f"[run]\nname = 'live'\n{STATE}[broker]\n{url}{of_another}")
        assert "the server refuses the client's certificate" in run.torchloom("status").stderr


@pytest.mark.long
def test_managers_reach_a_lighthouse_by_a_relay_with_a_certificate(start_run, tmp_path):
    from torchft._torchft import LighthouseClient

    _, files = issued(tmp_path / "tls")
    other = issued(tmp_path / "other")[1].ca
    port, place = free_ports(2)
    run = start_run(
        f"{STATE}[lighthouse]\nport = {port}\nstatus_port = 0\nquorum_tick_s = 0.02\n{keys(files)}"
    )
    run.start_weaver()
    output = (run.folder / "weaver-1.out").read_text()
    assert f"torchloom lighthouse-relay 127.0.0.1:{port} --ca" in output
    own = ["--certificate", files.certificate, "--key", files.key, "--ca", files.ca]
    with relay(run.folder, port, place, *own) as here:
        wait_until(lambda: "that serves is" in (run.folder / "relay.err").read_text())
        client = LighthouseClient(here, timedelta(seconds=20))
        quorum = client.quorum("a:1", timedelta(seconds=20), step=3)
        assert [member.replica_id for member in quorum.participants] == ["a:1"]
    for options, why in (
        (["--ca", files.ca], "gives no answer; it may ask for --certificate and --key"),
        (["--ca", other], f"the certificate is not signed by the CA in {other}"),
    ):
        with relay(run.folder, port, place, *options) as here:
            with pytest.raises((RuntimeError, TimeoutError)):
                LighthouseClient(here, SECOND).heartbeat("b:1", SECOND)
            log = run.folder / "relay.err"
            wait_until(lambda why=why, log=log: why in log.read_text())
    with pytest.raises((RuntimeError, TimeoutError)):
        LighthouseClient(f"http://127.0.0.1:{port}", SECOND).heartbeat("b:1", SECOND)


@contextlib.contextmanager
def relay(folder, port, place, *options):
    """Run a relay; give the URL for Managers that it prints."""
    out = folder / "relay.out"
    command = [*RELAY, f"127.0.0.1:{port}", "--bind", f"127.0.0.1:{place}", *options]
    with out.open("w") as stdout, (folder / "relay.err").open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    wait_until(lambda: "set for" in out.read_text() or process.poll() is not None)
    try:
        yield out.read_text().rpartition("=")[2].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_certificates_are_made_and_renewed_by_the_command_line(tmp_path):
    def torchloom(*words):
        command = [sys.executable, "-m", "torchloom_core.cli", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    status, out, _ = torchloom("tls", "init", "n1,10.0.0.5", "n2")
    assert status == 0
    assert out.startswith("tls/n1: n1, 10.0.0.5, valid until 20")
    files = {str(path.relative_to(tmp_path / "tls")) for path in Path(tmp_path).rglob("*.*")}
    assert files == {"ca.pem", "ca.key"} | {
        f"{host}/{name}.pem" for host in ("n1", "n2") for name in ("ca", "certificate", "key")
    }
    before = (tmp_path / "tls/n1/certificate.pem").read_text()
    assert torchloom("tls", "renew", "--days", "3")[0] == 0
    assert (tmp_path / "tls/n1/certificate.pem").read_text() != before
    assert torchloom("tls", "init", "n3")[1:] == (
        "",
        "torchloom: tls: has a CA: need another folder, or `torchloom tls renew`; if "
        "`torchloom tls init` was cut short, delete the folder and repeat it\n",
    )
    assert "need the name or address of at least one host" in torchloom("tls", "init")[2]
