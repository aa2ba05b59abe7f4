"""How often each method makes the host wait for the device: one run on the CPU, one on the pretended accelerator."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import sparring as sp
from accelerator.device import Count, counting, one_generator, plugged_in
from methods import METHODS, Method
from scenes import SCENES, Scene
from sparring import ensembles, recipes

# A step that needs no answer from the device asks for none. What is left, and why:
BUDGET = {"salt-finite": 1}  # per ascent step: how unequal the pulls are decides whether one more pass or two follow


def _boxed(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    ball = sp.Linf(radius, box=((-9.0,) * 4, 9.0)) if scene.name == "mlp" else sp.Linf(radius, box=(-9, 9))
    return recipes.trades(model, scene.loss, at=sp.Input(), ball=ball, steps=2, start=1e-2, **options)


def _measured(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    return recipes.vat(model, scene.loss, at=scene.at, ball=sp.L2(radius), measure_noise_every=1, **options)


def _central(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    player = sp.PGD(sp.L2(radius), start=1e-2, unroll="finite_difference", central=True)
    return recipes.salt(model, scene.loss, at=scene.at, by=player, **options)


def _whole_vocabulary(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    return recipes.word_iat(model, scene.loss, ball=sp.L2(radius), neighbours=None, **options)


def _flips(**fixed: Any) -> Any:
    def build(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
        player = sp.GreedyFlip(sp.Flips(0.5), **fixed)
        return sp.Objective(model, scene.loss, sp.Term(sp.Recurrent(), player, scene.penalty), **options)

    return build


def _shared_statistics(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    model.dropout = ensembles.LaplacePriorityDropout(batchwise=True)
    return sp.Objective(model, scene.loss, **options)


def _two_values(scene: Scene, model: Any, radius: float = 0.5, **options: Any) -> sp.Objective:
    model.dropout = ensembles.PriorityDiversifiedDropout()
    return sp.Objective(model, scene.loss, **options)


MORE = (  # ways of asking that the table of methods has no row for
    Method("trades-box", _boxed, ("mlp", "convnet")),
    Method("vat-measure_noise", _measured, ("mlp",)),
    Method("word_iat-vocabulary", _whole_vocabulary, ("lstm",)),
    Method("salt-central", _central, ("mlp",)),
    Method("adversarial_dropout-restarts", _flips(restarts=2), ("lstm",)),
    Method("adversarial_dropout-both_ways", _flips(both_ways=True, steps=2), ("lstm",)),
    Method("adversarial_dropout-published", _flips(paper_algorithm=True), ("lstm",)),
    Method("lpd-batchwise", _shared_statistics, ("ensemble",)),
    Method("pdd", _two_values, ("ensemble",)),
)
CASES = [(method, SCENES[name]) for method in (*METHODS, *MORE) for name in method.scenes]


@dataclass(frozen=True)
class Outcome:
    """Two training steps: the losses, the gradients they leave, the diagnostics, and what the later step did on the device."""

    losses: list[Tensor]
    gradients: list[Tensor]
    diagnostics: dict[str, float]
    count: Count


def steps(method: Method, scene: Scene, where: str, number: int = 2) -> Outcome:
    model, *batch = scene.setup()
    model.to(where)
    batch = tree_map(lambda x: x.to(where) if isinstance(x, Tensor) else x, batch)
    objective = method.build(scene, model)
    losses = []
    for k in range(number):
        torch.manual_seed(k)
        objective.number = 2 * k  # steps 1, 10 and 100 look at the players, which costs passes of its own
        with counting() as count:
            for loss in objective.steps(*batch):
                loss.backward()
            losses.append(loss.detach())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(t.device.type == torch.device(where).type for t in (*losses, *gradients)), (
        "something fell back to the CPU"
    )
    return Outcome([t.cpu() for t in losses], [t.cpu() for t in gradients], objective.diagnostics, count)


@cache
def on_both(method: Method, scene: Scene) -> tuple[Outcome, Outcome]:
    """The same numbers are drawn on either."""
    with plugged_in(), one_generator():
        return steps(method, scene, "cpu"), steps(method, scene, "pretend")


def table() -> str:
    """The page's table: the most that any scene of a method waits, in its second step."""
    rows = ["| method | tried on | waits of a step |", "|---|---|---|"]
    for method in (*METHODS, *MORE):
        found = max(len(on_both(method, SCENES[name])[1].count.waits) for name in method.scenes)
        rows.append(f"| `{method.name}` | {', '.join(method.scenes)} | {found} |")
    return "\n".join(rows)


__all__ = ["BUDGET", "CASES", "Outcome", "on_both", "steps", "table"]
