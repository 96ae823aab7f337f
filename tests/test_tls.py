"""Files for TLS that cannot be used are refused in one line."""

import logging
from pathlib import Path

import pytest

from tests.certificates import issued
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.files import write_private
from torchloom_core.floor.tls import (
    NO_TLS,
    Renewal,
    check_certificate,
    client_context,
    server_context,
)
from torchloom_core.live.transport.security import authority as authority_module
from torchloom_core.live.transport.security.authority import Authority


@pytest.fixture
def host(tmp_path):
    return issued(tmp_path / "tls", "n1", "10.0.0.5")


def refusal(files, *names):
    with pytest.raises(ConfigError) as caught:
        check_certificate(files, names or ("n1",))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_host_has_all_its_names_and_loopback(host):
    check_certificate(host[1], ("n1", "10.0.0.5", "localhost", "127.0.0.1", "::1"))


def test_another_name_another_ca_and_an_end_are_named(host, tmp_path):
    authority, files = host
    place = f"[broker] certificate: {files.certificate}: the certificate"
    assert refusal(files, "n2") == f"{place} is not for n2"
    assert refusal(files, "10.0.0.6") == f"{place} is not for 10.0.0.6"
    other = issued(tmp_path / "other", "n1")[1].ca
    signed = f"{place} is not signed by"
    assert refusal(files._replace(ca=other)) == f"{signed} the CA in {other}"
    assert refusal(files._replace(ca="")) == f"{signed} a CA that this system trusts: set its ca"
    authority.issue(("n1",), days=0)
    assert refusal(files) == f"{place} has expired"


def test_a_file_that_is_none_is_named(host, tmp_path):
    files, none = host[1], str(tmp_path / "none")
    need = "[broker] ca: need a PEM file with the CA's certificate in it"
    assert refusal(files._replace(ca=none)) == f"{need}, was {none}: No such file or directory"
    assert refusal(files._replace(ca=files.key)) == f"{need}, was {files.key}: there is none in it"
    key = issued(tmp_path / "other")[1].key
    need = "[broker]: need a certificate and its own key, without a password"
    assert refusal(files._replace(key=key)).startswith(f"{need}, was {files.certificate} and {key}")


def test_a_certificate_that_ends_soon_is_logged(host, caplog):
    authority, files = host
    authority.issue(("n1",), days=3)
    check_certificate(files, ("n1",))
    assert f"{files.certificate}: expires in 3 days: renew it" in caplog.text


def test_a_renewed_pair_is_loaded_and_half_of_one_is_not(host, caplog):
    caplog.set_level(logging.INFO)
    authority, files = host
    context = server_context(files)
    renewal = Renewal(context, files)
    renewal.check()
    assert not caplog.records
    authority.renew(10)
    renewal.check()
    assert f"{files.certificate}: loaded again" in caplog.text
    Path(files.key).write_text("half")
    renewal.check()
    assert "the former certificate stays in use: [broker] key: need a PEM file" in caplog.text


def test_a_new_ca_is_trusted_beside_the_one_before(host, tmp_path):
    authority, files = host
    before = str(tmp_path / "before.pem")
    Path(before).write_text(authority.ca_text)
    replaced = authority.replaced()
    replaced.renew(100, only_ca=True)
    check_certificate(files, ("n1",))  # a certificate of the CA before, by hosts with both
    Authority.read(tmp_path / "tls").renew(100)
    check_certificate(files, ("n1", "10.0.0.5"))
    assert "is not signed by the CA" in refusal(files._replace(ca=before))


def test_a_new_ca_of_which_only_the_certificate_was_written_leaves_the_one_before(
    host, tmp_path, monkeypatch
):
    authority, files = host
    monkeypatch.setattr(authority_module, "write_private", killed_before("ca.key"))
    with pytest.raises(KeyboardInterrupt):
        authority.replaced()
    monkeypatch.undo()
    Authority.read(tmp_path / "tls").renew(100)
    check_certificate(files, ("n1",))
    Authority.make(tmp_path / "other").issue(("n1",), 9)
    (tmp_path / "tls" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(StateError, match=r"need the key of a CA in ca\.pem, was another"):
        Authority.read(tmp_path / "tls").renew(100)
    Authority.read(tmp_path / "tls").replaced().renew(100)
    check_certificate(files, ("n1",))


def killed_before(name):
    def write(path, text):
        if path.name == name:
            raise KeyboardInterrupt
        write_private(path, text)

    return write


def test_a_folder_without_a_ca_and_a_second_one_are_refused(host, tmp_path):
    with pytest.raises(
        StateError, match=r"has a CA: need another folder, or `torchloom tls renew`"
    ):
        Authority.make(tmp_path / "tls")
    with pytest.raises(StateError, match=r"none/ca.key: need a CA: No such file"):
        Authority.read(tmp_path / "none")
    with pytest.raises(StateError, match=r"need the name or address of a host, was '\.\./x'"):
        host[0].issue(("../x",), 1)


def test_a_client_without_files_trusts_the_systems_cas():
    assert client_context(NO_TLS).get_ca_certs() is not None
    with pytest.raises(ConfigError, match=r"\[broker\] ca: "):
        client_context(files_of_none(), "no PEM")


def files_of_none():
    return NO_TLS._replace(place="[broker]")
