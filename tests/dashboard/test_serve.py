"""Where a dashboard cannot be served, one line says why, and what to do."""

import pytest

from torchloom_core.config.services import Dashboard
from torchloom_core.floor.errors import DashboardError
from torchloom_core.live.dashboard import serve


def refusal(**dashboard):
    with pytest.raises(DashboardError) as update:
        serve._listener(Dashboard(**{"port": 0, **dashboard}))
    assert "\n" not in str(update.value)
    return str(update.value)


def test_a_port_that_is_taken_says_how_to_take_another():
    with serve._listener(Dashboard(port=0)) as found:
        port = found.getsockname()[1]
        assert refusal(port=port) == (
            f"[dashboard]: cannot listen on 127.0.0.1:{port}: Address already in use; need another "
            "port in [dashboard], or by `torchloom dashboard --port`: 0 for any"
        )


def test_a_tls_file_that_is_none_is_named_with_what_it_has_to_hold(tmp_path):
    certificate, key, other = (
        tmp_path / "dashboard.crt",
        tmp_path / "dashboard.key",
        tmp_path / "other",
    )
    paths = {"certificate": str(certificate), "key": str(key)}
    need = f"[dashboard] certificate: need a PEM file with a certificate in it, was {certificate}"
    assert refusal(**paths) == f"{need}: No such file or directory"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    need = f"[dashboard] key: need a PEM file with a key in it, was {key}"
    assert refusal(**paths) == f"{need}: No such file or directory"
    other.write_bytes(b"\xff\x00no")
    assert refusal(certificate=str(certificate), key=str(other)).endswith(
        f"{other}: there is none in it"
    )
    key.write_text("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n")
    update = refusal(**paths)
    need = "[dashboard]: need a certificate and its own key, without a password"
    assert update.startswith(f"{need}, was {certificate} and {key}: ")
