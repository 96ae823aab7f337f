"""A simulated run whose step time follows a known law, shown to the policy tick by tick."""

import math
from dataclasses import dataclass, field

import numpy as np

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import ChangeKnobs, KnobSpec, ProbeLinks
from torchloom_core.testing import LinkSample, view_of
from torchloom_policies.allreduce.ring_order import RingSolver
from torchloom_policies.allreduce.step_samples import (
    CODE,
    COMPUTE,
    GRADIENT,
    NEEDS,
    OVERLAP,
    REDUCTIONS,
    ROUND,
    ROUND_STEPS,
    ROUND_WAIT,
    SENT,
    STEP,
    WAIT,
    WIRE,
)

NOW_S = 1_700_000_000.0
MBIT = 1e6 / 8
MODES = ("none", "bf16", "fp16", "int8", "topk", "powersgd")
UNSHAPED = 10_000 * MBIT
METRICS = (*(need.metric for need in NEEDS), "loss")


@dataclass
class Law:
    """The cost of a step; the defaults resemble four measured ranks of gloo."""

    gradient_bytes: float = 50.4e6
    compute_s: float = 0.2
    overlap_s: float = 0.05
    latency_s: float = 3e-4
    quorum_s: float = 0.004
    sent: dict = field(
        default_factory=lambda: {
            "none": 1.5, "bf16": 0.75, "fp16": 0.752, "int8": 0.38, "topk": 0.06, "powersgd": 0.005,
        }
    )  # fmt: skip
    code_s: dict = field(
        default_factory=lambda: {
            "none": 0.0, "bf16": 0.03, "fp16": 0.05, "int8": 0.18, "topk": 0.12, "powersgd": 0.15,
        }
    )  # fmt: skip
    hops: dict = field(
        default_factory=lambda: {
            "none": 6, "bf16": 6, "fp16": 6, "int8": 6, "topk": 3, "powersgd": 18,
        }
    )  # fmt: skip
    link_use: dict = field(default_factory=lambda: {"bf16": 0.72, "fp16": 0.72, "int8": 0.72})
    trial_factor: dict = field(default_factory=dict)

    def wire_s(self, mode, bandwidth, knobs=None):
        carried_s = self.sent[mode] * self.gradient_bytes / bandwidth / self.link_use.get(mode, 1.0)
        wire = carried_s + self.hops[mode] * self.latency_s
        for knob, value in (knobs or {}).items():
            wire *= self.trial_factor.get((knob, value), 1.0)
        return wire

    def step_s(self, mode, bandwidth, knobs=None):
        exposed = max(0.0, self.wire_s(mode, bandwidth, knobs) - self.overlap_s)
        return self.compute_s + self.code_s[mode] + exposed + self.quorum_s


class Run:
    """Groups of one worker; a proposed change is applied two ticks later."""

    def __init__(
        self,
        policy,
        law=None,
        *,
        workers=4,
        seed=0,
        noise=0.05,
        mode="none",
        knobs=(),
        lands=2,
        reductions=1,
    ):
        self.policy, self.law, self.n = policy, law or Law(), workers
        self.random, self.noise, self.lands = np.random.default_rng(seed), noise, lands
        self.reductions = reductions
        self.specs = [KnobSpec(name="compression", kind="choice", choices=MODES, fence="run")]
        self.specs += [spec for spec, _ in knobs]
        self.values = {"compression": mode, **{spec.name: value for spec, value in knobs}}
        self.bandwidth, self.slow, self.silent = UNSHAPED, {}, set()
        self.state, self.lacking, self.takes_probes = "training", set(), True
        self.t, self.step, self.ends_s, self.tick_at = 0.0, 0, 0.0, 0
        self.newest = dict.fromkeys(METRICS, np.full(workers, math.nan))
        self.under_way, self.made, self.switches = [], [], []
        self.links, self.probed = {}, {}
        self.steps = []  # (step, time, mode, seconds)
        self.loss, self.is_fresh = 2.0, False
        self.ends_s = self._next()

    @property
    def mode(self):
        return self.values["compression"]

    def _jitter(self, size=None):
        return np.exp(self.noise * self.random.normal(size=size))

    def _next(self):
        mode, law, n = self.mode, self.law, self.n
        compute = law.compute_s * self._jitter(n) * [self.slow.get(i, 1.0) for i in range(n)]
        wire = law.wire_s(mode, self.bandwidth, self.values) * self._jitter()
        code = law.code_s[mode] * self._jitter(n)
        overlap = min(wire, law.overlap_s)
        step = compute.max() + code.max() + wire - overlap + law.quorum_s
        late = (compute + code).max() - compute - code
        self.now = {
            STEP: np.full(n, step),
            COMPUTE: compute,
            WAIT: step - compute,
            SENT: np.full(n, law.sent[mode] * law.gradient_bytes),
            CODE: code,
            WIRE: wire + late,
            GRADIENT: np.full(n, law.gradient_bytes),
            REDUCTIONS: np.full(n, float(self.reductions)),
            OVERLAP: np.full(n, overlap),
            "loss": np.full(n, self.loss),
        }
        return self.t + step

    def tick(self):
        self.tick_at += 1
        done = None
        while self.ends_s <= self.tick_at:
            self.t, self.step, done = self.ends_s, self.step + 1, self.now
            self.steps.append((self.step, self.t, self.mode, float(done[STEP][0])))
            self._settle()
            due = [values for at, values in self.under_way if at <= self.tick_at]
            self.under_way = [(at, v) for at, v in self.under_way if at > self.tick_at]
            for values in due:
                if values.get("compression", self.mode) != self.mode:
                    self.switches.append((self.step, self.mode, values["compression"]))
                self.values = {**self.values, **values}
            self.ends_s = self._next()
        self.is_fresh = done is not None
        if done is not None:
            reports = np.isin(np.arange(self.n), list(self.silent), invert=True)
            for name, value in done.items():
                self.newest[name] = np.where(reports, value, self.newest[name])
        proposals = list(self.policy.on_tick(self.view()))
        for proposal in proposals:
            assert proposal.reason
            if isinstance(proposal.action, ChangeKnobs):
                assert proposal.net_gpu_s > 0
                self.under_way.append((self.tick_at + self.lands, proposal.action.values))
            if isinstance(proposal.action, ProbeLinks):
                self.probe(proposal.action)
        self.made += proposals
        return proposals

    def _settle(self):
        """Apply changes that take effect at a step's end."""

    def probe(self, action):
        for pair in action.pairs:
            speed = float(self.bandwidth * self._jitter())
            self.links[pair] = LinkSample(bytes_per_s=speed, latency_s=self.law.latency_s)
            self.probed[pair] = self.tick_at

    def view(self):
        links = {
            pair: sample._replace(age_s=float(self.tick_at - self.probed.get(pair, 0)))
            for pair, sample in self.links.items()
        }
        present = [{} if i in self.lacking else self.values for i in range(self.n)]
        silence = np.full(self.n, math.nan)
        return view_of(
            {
                name: values if self.is_fresh else np.stack([values, silence], axis=1)
                for name, values in self.newest.items()
            },
            workers=self.n,
            step=self.step,
            state=self.state,
            now_s=NOW_S + self.tick_at,
            knob_specs=self.specs,
            knob_values=present,
            can_be_probed=[self.takes_probes] * self.n,
            costs=Costs(gpus_per_worker=1.0),
            links=links,
        )

    def ticks(self, count):
        return [proposal for _ in range(count) for proposal in self.tick()]


class RoundsRun(Run):
    """The same under LocalSGD: a change is applied during a round, which ends with its old length.

    The sync of that round uses the new compression. A tick sees the metrics of the sync until they
    are stale, and the times of the newest step, which usually only computes.
    """

    def __init__(self, policy, law=None, *, every=8, stale_s=10, **more):
        self.every, self.stale_s = every, stale_s
        spec = KnobSpec(name="sync_every", kind="int", low=1, high=256, fence="run")
        super().__init__(policy, law, knobs=[(spec, every)], **more)

    def _next(self):
        end_s = super()._next()
        before_s = (self.every - 1) * self.now[COMPUTE]
        sync_s, wait_s = self.now[STEP], self.now[WAIT] + before_s.max() - before_s
        self.now |= {
            WAIT: wait_s,
            ROUND_STEPS: np.full(self.n, float(self.every)),
            ROUND: sync_s + before_s.max(),
            ROUND_WAIT: wait_s,
        }
        return end_s + before_s.max()

    def tick(self):
        due = [values for at, values in self.under_way if at <= self.tick_at + 1]
        self.under_way = [(at, v) for at, v in self.under_way if at > self.tick_at + 1]
        for values in due:
            if values.get("compression", self.mode) != self.mode:
                self.switches.append((self.step, self.mode, values["compression"]))
            self.values = {**self.values, **values}
            self.ends_s = max(self._next(), self.tick_at + 0.5)
        return super().tick()

    def _settle(self):
        self.every = self.values["sync_every"]

    def view(self):
        past_s = self.tick_at - self.t
        shown = dict(self.newest)
        if past_s > self.law.compute_s and self.step:
            shown |= {STEP: shown[COMPUTE], WAIT: 0.0 * shown[WAIT]}
        if past_s > self.stale_s:
            for name in (SENT, CODE, WIRE, GRADIENT, REDUCTIONS, OVERLAP, ROUND, ROUND_STEPS):
                shown[name] = np.full(self.n, math.nan)
        self.newest, own = shown, self.newest
        try:
            return super().view()
        finally:
            self.newest = own


def best_ring(speed, delay=None, **options):
    """Return the result of a whole search."""
    search = RingSolver(**options).search(speed, np.zeros_like(speed) if delay is None else delay)
    while True:
        try:
            next(search)
        except StopIteration as ended:
            return ended.value
