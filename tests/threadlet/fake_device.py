"""A device whose clock and whose lag behind the host a test sets."""

from collections.abc import Callable
from types import SimpleNamespace


class FakeDevice:
    """Work is over at once; from ``lags = True`` on only by ``finish``.

    ``now_s``: the time at which the work that follows is over, on the device's clock.
    """

    name = "NVIDIA Fake"
    uuid = "GPU-00000001-d9cf-fef3-62e9-d92044ab6e52"

    def __init__(self):
        self.now_s = 0.0
        self.lags = self.capturing = False
        self.made = 0
        self._later: list[Callable[[], object]] = []

    def is_capturing(self):
        return self.capturing

    def event(self):
        self.made += 1
        return SimpleNamespace(at_s=None, is_over=False)

    def record(self, event):
        assert not self.capturing
        event.at_s, event.is_over = self.now_s, False
        self._do(lambda: setattr(event, "is_over", True))

    def is_over(self, event):
        assert not self.capturing, "a query ends the capture"
        return event.is_over

    def seconds(self, begin, end):
        return end.at_s - begin.at_s

    def pinned(self, dtype):
        self.made += 1
        pinned = SimpleNamespace(value=None, dtype=dtype)
        pinned.item = lambda: pinned.value
        return pinned

    def copy(self, value, pinned):
        self._do(lambda: setattr(pinned, "value", value.number))

    def finish(self, count=None):
        done, self._later = self._later[:count], self._later[len(self._later[:count]) :]
        for work in done:
            work()

    def _do(self, work):
        if self.lags:
            self._later.append(work)
        else:
            work()


class OnDevice:
    """A tensor with one element, or more, on the device."""

    is_cuda, dtype, device = True, "float32", "cuda:1"

    def __init__(self, number, elements=1):
        self.number, self._elements = number, elements

    def detach(self):
        return self

    def numel(self):
        return self._elements

    def __float__(self):
        raise AssertionError("this waits for the device")
