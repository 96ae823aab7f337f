"""A process's connection to the rollout queue, made again whenever it is lost."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from torchloom_core.floor.errors import RolloutError
from torchloom_core.wire.rollouts import (
    LENGTHS,
    MAX_HEADER,
    Batches,
    Done,
    FromClient,
    FromQueue,
    Go,
    Hello,
    Publish,
    Put,
    Refused,
)
from torchloom_core.wire.wording import in_words

WAIT_S = 1.0
"""How long the queue holds a request back, before the answer that there is nothing."""

_VARIABLE = "TORCHLOOM_ROLLOUT_QUEUE"
_CONNECT_S, _ANSWER_S, _AGAIN_S = 2.0, 30.0, 0.1
_check = msgspec.msgpack.Decoder(FromClient).decode
_log = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(FromQueue).decode
_Answer = TypeVar("_Answer")


class QueueLink:
    """The connection of one client; used by one thread.

    Parameters
    ----------
    address : str, optional
        ``host:port``, else ``TORCHLOOM_ROLLOUT_QUEUE``.
    timeout_s : float
        How long a request may take, the time in which there is no queue included, in seconds.

    Attributes
    ----------
    hello : Hello
        The first message of each connection.
    on_connect : callable, optional
        Called on a new connection with the queue's answer.

    Raises
    ------
    RolloutError
        If no address is set, or it is none.
    """

    def __init__(self, address: str | None, timeout_s: float) -> None:
        self.place = address or os.environ.get(_VARIABLE, "")
        host, _, port = self.place.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise RolloutError(f"{_VARIABLE}: need host:port, was {self.place!r}")
        self._address = (host.strip("[]"), int(port))
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._reported = False
        self.hello = Hello(client=f"{os.getpid()}-{secrets.token_hex(8)}")
        self.on_connect: Callable[[Done], None] | None = None

    def ask(
        self, request: FromClient, kind: type[_Answer], body: bytes | memoryview = b""
    ) -> tuple[_Answer, list[memoryview]]:
        """Send a request, again on each new connection; return the answer and its bodies.

        Raises
        ------
        RolloutError
            If the request breaks a rule, or the queue has not answered in time.
        """
        try:
            _check(msgspec.msgpack.encode(request))
        except (msgspec.DecodeError, OverflowError) as error:
            what = str(type(request).__struct_config__.tag)
            raise RolloutError(f"rollout queue, {what}: {in_words(error)}") from None
        end_s = time.monotonic() + self._timeout_s
        while True:
            try:
                answer, bodies = self._ask_once(request, body)
            except (OSError, msgspec.DecodeError) as error:
                self._close()
                if not self._reported:
                    _log.warning("no rollout queue at %s, waiting for it: %s", self.place, error)
                    self._reported = True
                if time.monotonic() > end_s:
                    late = f"no answer for {self._timeout_s:g} s: {error}"
                    raise RolloutError(f"rollout queue at {self.place}: {late}") from None
                time.sleep(_AGAIN_S)
                continue
            if isinstance(answer, Refused):
                raise RolloutError(f"rollout queue at {self.place}: {answer.why}")
            if isinstance(answer, kind):
                return answer, bodies
            self._close()
            raise RolloutError(f"{self.place}: no rollout queue, or one of another version")

    def until(self, is_over: Callable[[float], bool], what: str) -> None:
        """Call ``is_over(wait_s)`` until it is true; RolloutError once it takes too long."""
        end_s = time.monotonic() + self._timeout_s
        while not is_over(WAIT_S):
            if time.monotonic() > end_s:
                raise RolloutError(
                    f"rollout queue at {self.place}: no {what} for {self._timeout_s:g} s"
                )

    def close(self) -> None:
        """End the connection: prompts without an answer are given to others."""
        self._close()

    def _ask_once(
        self, request: FromClient, body: bytes | memoryview
    ) -> tuple[FromQueue, list[memoryview]]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, _CONNECT_S)
            self._socket.settimeout(_ANSWER_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(self.hello)
            done, _ = self._receive()
            if self._reported:
                _log.warning("rollout queue at %s: connected again", self.place)
                self._reported = False
            if isinstance(done, Done) and self.on_connect is not None:
                self.on_connect(done)
        self._send(request)
        answer, bodies = self._receive()
        if isinstance(answer, Go) and isinstance(request, Put | Publish):
            self._socket.sendall(body)
            answer, bodies = self._receive()
        return answer, bodies

    def publish(self, publish: Publish, body: bytes) -> FromQueue:
        """Send weights on the present connection; OSError if it fails."""
        return self._ask_once(publish, body)[0]

    def _send(self, request: FromClient) -> None:
        assert self._socket is not None
        header = msgspec.msgpack.encode(request)
        self._socket.sendall(LENGTHS.pack(len(header), 0) + header)

    def _receive(self) -> tuple[FromQueue, list[memoryview]]:
        header, size = LENGTHS.unpack(self._exactly(LENGTHS.size))
        if header > MAX_HEADER:
            raise OSError(f"need a header of at most {MAX_HEADER} bytes, was {header}")
        answer = _decode(self._exactly(header))
        body = self._exactly(size)
        if not isinstance(answer, Batches):
            return answer, [body] if size else []
        bodies, at = [], 0
        for batch in answer.batches:
            bodies.append(body[at : at + batch.size])
            at += batch.size
        if at != size:
            raise OSError(f"need batches of {size} bytes, were {at}")
        return answer, bodies

    def _exactly(self, size: int) -> memoryview:
        assert self._socket is not None
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if not count:
                raise ConnectionError("the connection has ended")
            at += count
        return view

    def _close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None


class Waited:
    """The seconds that a process has waited for the queue, for its telemetry."""

    def __init__(self) -> None:
        self._step_s = self._total_s = 0.0

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        waited_s = time.monotonic() - self._began_s
        self._step_s += waited_s
        self._total_s += waited_s

    def metrics(self) -> Mapping[str, Any]:
        """Return the seconds since the last call, and in total."""
        step_s, self._step_s = self._step_s, 0.0
        return {"queue_wait_s": step_s, "queue_wait_total_s": self._total_s}
