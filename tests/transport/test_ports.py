"""A server that restarts finds its port free."""

import socket
from pathlib import Path

from torchloom_core.live.transport.ports import is_free, lasting_port


def test_no_outgoing_connection_is_given_the_port_of_a_server_that_restarts():
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    port = lasting_port("127.0.0.1")
    assert not lowest <= port <= highest
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)


def test_an_address_of_another_machine_has_no_port():
    assert lasting_port("192.0.2.1") == 0
