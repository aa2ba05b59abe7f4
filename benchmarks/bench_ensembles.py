"""Training steps of an ensemble with priority dropout and diversity terms, relative to the plain ensemble's.

python benchmarks/bench_ensembles.py [--width 16] [--members 3] [--rounds 7]
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from harness import interleave
from sparring import FastGradient, Linf, Objective
from sparring.ensembles import (
    ADP,
    DEG,
    TRS,
    Ensemble,
    EnsembleDropout,
    LaplacePriorityDropout,
    PriorityDiversifiedDropout,
    member_cross_entropy,
)
from sparring.lab.models.resnet import ResNet18
from sparring.lab.models.small_cnn import SmallCNN
from sparring.lab.training.memory import keep_memory
from sparring.recipes.ensembles import simultaneous

GOALS = {"LPD": 1.05, "LPD, batch statistics": 1.05, "ADP": 1.10}


def stepping(
    objective: Callable[..., torch.Tensor], model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], None]:
    """One training step: loss, backward, update."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        objective(*batch).backward()
        optimiser.step()

    return step


def compare(
    title: str, make: Callable[[], nn.Module], size: tuple[int, ...], members: int, rounds: int, second_order: bool
) -> None:
    """Print the ratios for one architecture."""
    torch.manual_seed(0)
    batch = torch.rand(64, *size), torch.randint(10, (64,))
    nets = [make() for _ in range(members)]

    def variant(*terms: object, dropout: nn.Module | None = None, **options: object) -> Callable[[], None]:
        model = Ensemble(nets, dropout=dropout)
        objective: Objective = simultaneous(model, *terms, **options)  # type: ignore[arg-type]
        return stepping(objective, model, batch)

    plain = Ensemble(nets)
    by_hand = stepping(lambda x, y: member_cross_entropy(plain(x), y).mean(), plain, batch)
    variants = {
        "objective without terms": variant(),
        "plain dropout": variant(dropout=EnsembleDropout()),
        "PDD": variant(dropout=PriorityDiversifiedDropout()),
        "LPD": variant(dropout=LaplacePriorityDropout()),
        "LPD, batch statistics": variant(dropout=LaplacePriorityDropout(batchwise=True)),
        "ADP": variant(ADP(), reduce="sum"),
    }
    if second_order:
        fgsm = FastGradient(Linf(0.03))
        variants |= {
            "FGSM on the ensemble": variant(by=fgsm),
            "FGSM on each member": variant(by=fgsm, craft="member"),
            "DEG": variant(DEG()),
            "TRS": variant(TRS(), reduce="sum"),
        }
    print(f"\n{title}, K = {members}, batch 64")
    for ratio in interleave(("plain ensemble, by hand", by_hand), variants, rounds=rounds, repeats=1).values():
        print(ratio.row(GOALS.get(ratio.name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16, help="of the ResNet-18; 64 is the published network")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    keep_memory()
    small = partial(SmallCNN, channels=(16, 32), hidden=512)
    compare("Small CNN, 28 x 28", small, (1, 28, 28), options.members, options.rounds, second_order=True)
    wide = partial(ResNet18, width=options.width)
    compare(f"ResNet-18, width {options.width}", wide, (3, 32, 32), options.members, options.rounds, second_order=False)


if __name__ == "__main__":
    main()
