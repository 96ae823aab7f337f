"""A device whose copies are done only when an event after them is waited for."""

import contextlib

import torch


class FakeEvent:
    def __init__(self, stream, number):
        self._stream, self._number = stream, number

    def synchronize(self):
        self._stream.run(self._number)

    def query(self):
        return self._stream.ran >= self._number

    def elapsed_time(self, later):
        return float(later._number - self._number)


class FakeStream:
    """Queues copies; each takes a millisecond by its clock."""

    def __init__(self, waits_at_once=False):
        self._copies, self.ran, self._waits_at_once = [], 0, waits_at_once

    def add(self, copy):
        self._copies.append(copy)

    def run(self, number):
        while self.ran < number:
            self.ran += 1
            self._copies[self.ran - 1]()

    def wait_event(self, event):
        if self._waits_at_once:  # torch codes at once on a CPU, so its inputs must be there
            event.synchronize()

    def mark(self):
        return FakeEvent(self, len(self._copies))


class FakeAccelerator:
    """Stands in for :class:`~torchloom_threadlet.compression.staging.Accelerator`."""

    devices = None

    def __init__(self):
        self.coding = FakeStream(waits_at_once=True)
        self.to_host, self.from_host = FakeStream(), FakeStream()
        self._now = self.coding

    def current(self):
        return self._now

    @contextlib.contextmanager
    def on(self, stream):
        before, self._now = self._now, stream
        yield
        self._now = before

    def mark(self, stream):
        return stream.mark()

    def copy(self, into, source):
        self._now.add(lambda: into.copy_(source))

    def keep(self, tensor, stream):
        pass

    def host_memory(self, like):
        return torch.full_like(like, 77)
