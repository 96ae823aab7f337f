"""Small trainings, each with something that a resume must survive."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = {"ddp_batchnorm": 2, "uneven_fsdp": 3, "sampler": 2, "stateful_sampler": 2}
"""The cases of several ranks."""

DATA = TensorDataset(torch.arange(60.0).reshape(20, 3) / 60)


def net(*more, width=8):
    return nn.Sequential(
        nn.Linear(3, width), *more, nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 3)
    )


class Case:
    """What is trained: ``parts`` are saved, ``step(batch)`` trains and returns the loss."""

    loader = None

    def __init__(self, model, make=torch.optim.AdamW, *parts, weights=None, lr=0.01, **options):
        self.model = model
        self.optimizer = make(weights or model.parameters(), lr=lr, **options)
        self.parts = [model, self.optimizer, *parts]

    def loss(self, batch):
        return (self.model(batch) - batch).square().mean()

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.after(loss)
        return loss

    def after(self, loss):
        """Do what follows the optimizer's step."""


def of_optimizer(name, **options):
    return lambda: Case(net(), getattr(torch.optim, name), **options)


def lbfgs():
    case = Case(net(), torch.optim.LBFGS, max_iter=3)

    def step(batch):
        def closure():
            case.optimizer.zero_grad()
            loss = (case.model[0](batch)).square().mean() + case.model[3].weight.square().sum()
            loss.backward()
            return loss

        return case.optimizer.step(closure)

    case.step = step
    return case


def schedules():
    case = Case(net(), torch.optim.SGD, lr=0.1, momentum=0.9)
    one = LambdaLR(case.optimizer, lambda epoch: 0.95**epoch)
    two = StepLR(case.optimizer, 2, 0.9)
    sequence = SequentialLR(case.optimizer, [one, two], milestones=[5])
    case.parts.append(sequence)
    case.after = lambda loss: sequence.step()
    return case


def cycle():
    case = Case(net(), torch.optim.AdamW)
    schedule = OneCycleLR(case.optimizer, 0.1, total_steps=100)
    plateau = ReduceLROnPlateau(case.optimizer, patience=1)
    case.parts += [schedule, plateau]
    case.after = lambda loss: (schedule.step(), plateau.step(loss.detach()))
    return case


def scaler():
    case = Case(net())
    scale = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    case.parts.append(scale)

    def step(batch):
        case.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = case.loss(batch)
        scale.scale(loss).backward()
        scale.step(case.optimizer)
        scale.update()
        return loss * scale.get_scale()

    case.step = step
    return case


def averaged():
    case = Case(net())
    mean = AveragedModel(case.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    own = copy.deepcopy(case.model)
    case.parts += [mean, own]

    def after(loss):
        mean.update_parameters(case.model)
        with torch.no_grad():
            for old, new in zip(own.parameters(), case.model.parameters(), strict=True):
                old.lerp_(new, 0.1)

    case.after = after
    return case


def two_models():
    one, two = net(), Case(net(nn.BatchNorm1d(8)), torch.optim.RMSprop)
    first = Case(one)
    first.parts += two.parts
    first.after = lambda loss: two.step(one[0](torch.rand(4, 3)).detach()[:, :3])
    return first


def tied():
    model = net(nn.Linear(8, 8), nn.Linear(8, 8))
    model[2].weight = model[1].weight
    return Case(model)


def frozen():
    model = net(nn.BatchNorm1d(8))
    model[0].requires_grad_(False)
    return Case(model, weights=[{"params": [p]} for p in model.parameters()], weight_decay=0.1)


def compiled():
    return Case(torch.compile(net(), backend="eager"))


def ddp_batchnorm():
    return Case(DistributedDataParallel(net(nn.BatchNorm1d(8))))


def uneven_fsdp():
    model = net(nn.Linear(5, 1), nn.Linear(1, 5), width=5)
    for part in model:
        fully_shard(part)
    return Case(fully_shard(model))


def loader(workers, **options):
    def case():
        from torchdata.stateful_dataloader import StatefulDataLoader

        found = Case(net())
        context = "fork" if workers else None
        found.loader = StatefulDataLoader(
            DATA, 3, shuffle=True, num_workers=workers, multiprocessing_context=context, **options
        )
        found.parts.append(found.loader)
        return found

    return case


def sampler():
    case = Case(DistributedDataParallel(net()))
    case.loader = DataLoader(DATA, 3, sampler=DistributedSampler(DATA, shuffle=True))
    return case


def stateful_sampler():
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    case = Case(DistributedDataParallel(net()))
    order = StatefulDistributedSampler(DATA, dist.get_world_size(), dist.get_rank(), shuffle=True)
    case.loader = StatefulDataLoader(DATA, 3, sampler=order)
    case.parts.append(case.loader)
    return case


CASES = {
    **{
        name.lower(): of_optimizer(name)
        for name in ("SGD", "Adafactor", "Adagrad", "Rprop", "ASGD", "NAdam")
    },
    "foreach": of_optimizer("AdamW", foreach=True, amsgrad=True),
    "loader_0": loader(0),
    "loader_2": loader(2),
    "loader_kept": loader(1, persistent_workers=True),
    **{
        one.__name__: one
        for one in (
            lbfgs, schedules, cycle, scaler, averaged, two_models, tied, frozen, compiled,
            ddp_batchnorm, uneven_fsdp, sampler, stateful_sampler,
        )
    },
}  # fmt: skip
