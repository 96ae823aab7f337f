"""A survey of the loss: its results, their pieces, its end, and the restored state."""

import copy
import math

import msgspec
import pytest
import torch
from torch import nn

from tests.threadlet.standbys import refusal, worker_with
from torchloom_core.wire.landscape import Cells, Curvature, LandscapeRequest, Line, Piece, Plane
from torchloom_core.wire.operations import Survey
from torchloom_core.wire.standby_task import End
from torchloom_threadlet.landscape import Landscape
from torchloom_threadlet.landscape.directions import filter_normalised, orthogonal_to
from torchloom_threadlet.landscape.surface import shares

ALWAYS = 3600.0


class Bowl(nn.Module):
    """A quadratic loss with a known Hessian, of weights that ``load`` sets."""

    def __init__(self, size=6):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        self.hessian = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
        self.newest = torch.randn(size, generator=generator, dtype=torch.float64)
        self.weights = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def loss(self):
        return 0.5 * self.weights @ self.hessian @ self.weights + 3.0

    def load(self):
        with torch.no_grad():
            self.weights.copy_(self.newest)


class Net:
    """A small network with dropout and batch norm, a fixed batch, and a newest state."""

    def __init__(self):
        torch.manual_seed(0)
        layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)]
        self.model = nn.Sequential(*layers).double()
        self.newest = copy.deepcopy(self.model.state_dict())
        for tensor in self.newest.values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
        self.inputs = torch.randn(32, 5, dtype=torch.float64)
        self.targets = torch.randint(0, 3, (32,))
        self.evaluations = 0

    def loss(self):
        self.evaluations += 1
        return nn.functional.cross_entropy(self.model(self.inputs), self.targets)

    def load(self):
        self.model.load_state_dict(self.newest)

    def landscape(self, **more):
        return Landscape(self.model, self.loss, self.load, **more)


class Recorded:
    """The results of a survey, piece by piece, as they come over the wire."""

    def __init__(
        self, landscape, look=None, seconds=ALWAYS, should_stop=lambda: False, worker="v0-0"
    ):
        self.pieces, self.progress = [], []
        self.outcome = landscape.run(
            look or LandscapeRequest(side=5), worker, seconds, self._take, should_stop
        )

    def _take(self, points, of, piece):
        self.progress.append((points, of))
        self.pieces.append(msgspec.json.decode(msgspec.json.encode(piece), type=Piece))

    def of(self, kind):
        return [piece for piece in self.pieces if isinstance(piece, kind)]

    @property
    def line(self):
        return dict(point for piece in self.of(Line) for point in piece.points)

    @property
    def cells(self):
        return {(row, column): loss for p in self.of(Cells) for row, column, loss in p.cells}

    @property
    def end(self):
        return self.pieces[-1]


def test_line_and_plane_equal_a_slow_direct_evaluation():
    net = Net()
    results = Recorded(net.landscape())
    net.load()
    net.model.eval()
    weights = list(net.model.parameters())
    own = [weight.detach().clone() for weight in weights]
    way = [-g for g in torch.autograd.grad(net.loss(), weights)]
    generator = torch.Generator().manual_seed(0)
    first = filter_normalised(own, generator)
    second = orthogonal_to(filter_normalised(own, generator), first)

    def direct(*moves):
        with torch.no_grad():
            for number, weight in enumerate(weights):
                weight.copy_(own[number])
                for direction, share in moves:
                    weight.add_(direction[number], alpha=share)
            return float(net.loss())

    assert len(results.line) == 5
    for share, loss in results.line.items():
        assert loss == direct((way, share))
    along = shares(5, 1.0)
    assert len(results.cells) == 25
    for (row, column), loss in results.cells.items():
        assert loss == direct((first, along[row]), (second, along[column]))
    (bend,) = results.of(Curvature)
    assert bend.loss == direct()
    assert sorted(results.line) == pytest.approx(
        [bend.critical_step * x for x in (-1, -0.25, 0.5, 1.25, 2)]
    )
    assert direct((way, bend.critical_step)) == pytest.approx(bend.loss, rel=1e-6)


def test_cheap_and_informative_results_come_first():
    results = Recorded(Net().landscape())
    kinds = list(dict.fromkeys(type(piece) for piece in results.pieces))
    assert kinds == [Curvature, Line, Plane, Cells, End]
    assert results.end.why == ""
    assert results.outcome == f"{results.end.points} points in {results.end.seconds:.1f} s"
    points = [points for points, _ in results.progress]
    assert points == sorted(points)
    assert points[-1] <= results.progress[-1][1] == 30 + 5 + 25


@pytest.mark.parametrize("points", [1, 2, 3, 20, 40])
def test_no_more_points_are_evaluated_than_granted(points):
    net = Net()
    results = Recorded(net.landscape(), LandscapeRequest(points=points, side=5))
    assert net.evaluations == points == results.end.points
    assert results.end.why == f"the limit of {points} points was reached"


def test_the_time_limit_ends_it():
    net = Net()
    results = Recorded(net.landscape(), seconds=0.0)
    assert (net.evaluations, results.pieces) == (0, [results.end])
    assert results.end.why == "the limit of 0 s was reached"


@pytest.mark.parametrize("point", [0, 1, 7, 33, 50])
def test_another_command_ends_the_survey_at_the_next_point(point):
    net = Net()
    results = Recorded(net.landscape(), should_stop=lambda: net.evaluations >= point)
    assert net.evaluations == point
    assert results.end.points == point
    assert "it was cancelled" in results.outcome


def test_the_optimizer_s_own_step_is_the_update_if_the_script_can_take_one():
    net = Net()
    optimizer = torch.optim.SGD(net.model.parameters(), lr=0.25)
    modes = []

    def step():
        modes.append(net.model.training)
        optimizer.zero_grad()
        net.model.eval()  # the same loss as the line's, without dropout
        net.loss().backward()
        optimizer.step()

    results = Recorded(net.landscape(step=step))
    (bend,) = results.of(Curvature)
    (other,) = Recorded(Net().landscape()).of(Curvature)
    assert (modes, bend.along) == ([True], "step")
    assert bend.length == pytest.approx(0.25 * other.length)
    assert bend.critical_step == pytest.approx(4.0 * other.critical_step, rel=1e-6)
    assert bend.curvature == pytest.approx(other.curvature, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda: torch.rand(()), "need the same loss twice at the same weights, was 0"),
        (lambda: math.nan, "need a loss that is a number, was nan"),
    ],
)
def test_a_loss_that_is_no_number_or_varies_is_refused(loss, why):
    net = Net()
    with pytest.raises(ValueError, match=why):
        Recorded(Landscape(net.model, loss, net.load))


def test_weights_buffers_and_modes_are_restored_to_the_bit():
    for fails_after in (math.inf, 0, 1, 12, 45):
        net = Net()
        before = copy.deepcopy(net.model.state_dict())
        net.model[3].eval()

        def loss(net=net, fails_after=fails_after):
            if net.evaluations >= fails_after:
                raise RuntimeError("no")
            return net.loss()

        def step(net=net):
            net.model(net.inputs)  # changes the running averages
            with torch.no_grad():
                net.model[0].weight.add_(0.01)

        landscape = Landscape(net.model, loss, net.load, step=step)
        if fails_after < math.inf:
            with pytest.raises(RuntimeError):
                Recorded(landscape)
        else:
            Recorded(landscape)
        for name, tensor in net.model.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert [module.training for module in net.model] == [True, True, True, False, True]
        assert net.model.training


def test_the_runs_path_is_in_the_plane_with_most_of_its_variance():
    net = Net()
    states = []
    for scale in (1.0, 0.6, 0.3):
        state = copy.deepcopy(net.newest)
        state["0.weight"] += scale * torch.randn(8, 5, generator=torch.Generator().manual_seed(3))
        state["4.weight"] += scale**2
        states.append(state)

    def path():
        for state in states:
            net.model.load_state_dict(state)
            yield

    results = Recorded(net.landscape(path=path), LandscapeRequest(side=5, plane="path"))
    (plane,) = results.of(Plane)
    assert len(plane.path) == 4
    assert plane.path[-1] == (0.0, 0.0, 0.0)
    assert sum(plane.variance_explained) == pytest.approx(1.0)
    assert plane.reach == pytest.approx(1.25 * max(abs(x) for x, *_ in plane.path))
    (bend,) = results.of(Curvature)
    assert results.cells[2, 2] == bend.loss
    assert len(set(plane.prints)) == len(plane.path)
    assert plane.prints[-1] == bend.at


@pytest.mark.parametrize("parts", [2, 3])
def test_a_divided_plane_has_the_same_cells(parts):
    among = tuple(f"v{part}-0" for part in range(parts))
    whole = Recorded(Net().landscape(), LandscapeRequest(side=5, seed=3))
    looks = [
        Recorded(
            Net().landscape(),
            LandscapeRequest(side=5, seed=3, over=parts, among=among),
            worker=worker,
        )
        for worker in among
    ]
    cells = {}
    for results in looks:
        assert not cells.keys() & results.cells.keys()
        cells |= results.cells
    assert cells == whole.cells
    assert [len(results.of(Curvature)) for results in looks] == [1, *[0] * (parts - 1)]
    assert [len(results.line) for results in looks] == [5, *[0] * (parts - 1)]
    planes = [plane for results in looks for plane in results.of(Plane)]
    assert len(planes) == parts
    assert len(set(planes)) == 1
    assert (planes[0].parts, planes[0].at) == (parts, whole.of(Curvature)[0].at)


def test_only_a_standby_whose_script_offers_a_landscape_surveys():
    net = Net()
    offers = worker_with(net.landscape())
    assert "survey" in offers.operations.offered()
    assert refusal(offers, Survey(), "standby") == ""
    assert refusal(offers, Survey(), "training") == "need a standby, the worker is training"
    assert "pass path=" in refusal(offers, Survey(plane="path"), "standby")
    with_path = worker_with(net.landscape(path=lambda: ()))
    assert refusal(with_path, Survey(plane="path"), "standby") == ""
    none = worker_with()
    assert "survey" not in none.operations.offered()
    assert "pass landscape= to attach()" in refusal(none, Survey(), "standby")
    assert refusal(none, Survey(points=0), "training") == ""
    assert "survey" not in worker_with(net.landscape(), standby=False).operations.offered()
