"""Train a row of the methods table: in several processes, in one on the joined batch, or in one that plays all ranks in turn."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import sparring as sp
from methods import METHODS, Method
from ranks import SHARE, WholeBatchNoise, rows, shares
from scenes import SCENES, Scene

STEPS = 3
Trained = dict[str, Tensor]


def table() -> dict[str, tuple[Method, Scene]]:
    """Every row by the name that test ids show."""
    return {f"{method.name}-{scene}": (method, SCENES[scene]) for method in METHODS for scene in method.scenes}


def why_apart(name: str) -> str:
    """Why processes do not add up to one on the joined batch; empty if they do."""
    method, scene = table()[name]
    mixing = any(isinstance(module, _BatchNorm) for module in scene.model().modules())
    return method.apart or ("batch norm takes the statistics of each process's examples" if mixing else "")


@dataclass
class Player:
    """One rank: its objective, its share of the examples, its stream of random numbers."""

    objective: sp.Objective
    batch: tuple[Any, ...]
    noise: WholeBatchNoise
    optimiser: torch.optim.Optimizer
    ask: Callable[..., Any]
    state: Tensor | None = None

    @classmethod
    def of(cls, objective: sp.Objective, batch: Any, rank: int, sizes: Sequence[int], ask: Any = None) -> "Player":
        share = shares(sizes)[rank]
        optimiser = torch.optim.SGD(objective.model.parameters(), lr=0.1)
        mine = rows(tuple(batch), share)
        return cls(objective, mine, WholeBatchNoise(share, sum(sizes)), optimiser, ask or objective.steps)

    def backward(self, losses: Any) -> None:
        assert self.state is not None
        torch.set_rng_state(self.state)
        with self.noise:
            next(losses).backward()
        self.state = torch.get_rng_state()


def train(players: Sequence[Player], **options: Any) -> Trained:
    """A few updates; several players in one process have their gradients averaged by hand, as ranks do. The first one's state."""
    first = players[0].objective
    for number in range(STEPS):
        torch.manual_seed(number)
        for player in players:
            player.state = torch.get_rng_state()
        streams = [player.ask(*player.batch, **options) for player in players]
        parts = first.parts(players[0].batch[1])
        for part in range(parts):
            for player, losses in zip(players, streams, strict=True):
                player.backward(losses)
            if first.update_each_loss or part == parts - 1:
                update(players)
    return values(first)


def update(players: Sequence[Player]) -> None:
    for same in zip(*(player.objective.model.parameters() for player in players), strict=True) if players[1:] else ():
        mean = torch.stack([p.grad for p in same]).mean(0)
        for parameter in same:
            parameter.grad.copy_(mean)
    for player in players:
        player.optimiser.step()
        player.optimiser.zero_grad()


def values(objective: sp.Objective) -> Trained:
    """All that training moved; FreeAT's carried perturbation is each process's own."""
    found = {k: v for k, v in objective.state_dict().items() if isinstance(v, Tensor) and "carried" not in k}
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for k, v in found.items()}


def built(name: str, world: int, prepare: Callable[[nn.Module], Any] = lambda model: None) -> tuple[sp.Objective, Any]:
    """A row's objective over a fresh model, and the examples of all processes together."""
    method, scene = table()[name]
    model, *batch = scene.setup(examples=SHARE * world)
    prepare(model)
    return method.build(scene, model), batch


def joined(name: str, world: int) -> Trained:
    """One process, all examples in one batch."""
    objective, batch = built(name, world)
    return train([Player.of(objective, batch, 0, (SHARE * world,))])


def in_turn(name: str, world: int) -> Trained:
    """One process that plays the ranks one after the other, each on its share."""
    objective, batch = built(name, world)
    copies = [objective, *(copy.deepcopy(objective) for _ in range(world - 1))]
    return train([Player.of(one, batch, rank, (SHARE,) * world) for rank, one in enumerate(copies)])


@cache
def expected(name: str, world: int) -> Trained:
    """What every rank must end with."""
    return in_turn(name, world) if why_apart(name) else joined(name, world)


def distance(one: Trained, other: Trained, buffers: bool = True) -> float:
    """The largest difference of any entry."""
    assert one.keys() == other.keys()
    keys = [key for key in one if buffers or "running" not in key]  # batch-norm averages are each process's own
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in keys if one[k].numel())
