"""Where a room cannot be served, one line says why, and what to do."""

import pytest

from torchloom_core.config.schema import Room
from torchloom_core.errors import RoomError
from torchloom_core.room import serve


def refusal(**room):
    with pytest.raises(RoomError) as told:
        serve._listener(Room(**{"port": 0, **room}))
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_port_that_is_taken_says_how_to_take_another():
    with serve._listener(Room(port=0)) as found:
        port = found.getsockname()[1]
        assert refusal(port=port) == (
            f"[room]: cannot listen on 127.0.0.1:{port}: Address already in use; need another port "
            "in [room], or by `torchloom room --port`: 0 for any"
        )


def test_a_tls_file_that_is_none_is_named_with_what_it_has_to_hold(tmp_path):
    certificate, key, other = tmp_path / "room.crt", tmp_path / "room.key", tmp_path / "other"
    paths = {"certificate": str(certificate), "key": str(key)}
    need = f"[room] certificate: need a PEM file with a certificate in it, was {certificate}"
    assert refusal(**paths) == f"{need}: No such file or directory"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    need = f"[room] key: need a PEM file with a key in it, was {key}"
    assert refusal(**paths) == f"{need}: No such file or directory"
    other.write_bytes(b"\xff\x00no")
    assert refusal(certificate=str(certificate), key=str(other)).endswith(f"{other}: it holds none")
    key.write_text("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n")
    told = refusal(**paths)
    need = "[room]: need a certificate and its own key, without a password"
    assert told.startswith(f"{need}, was {certificate} and {key}: ")
