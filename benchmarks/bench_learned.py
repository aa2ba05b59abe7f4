"""Cost of learning dropout rates: one ARM training step against the same step with plain dropout.

Run: python benchmarks/bench_learned.py [--rounds 9]
Goals: at most 1.20 on an MLP, 1.05 on a convolutional network whose dropout stands before its classifier.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import sparring as sp
from harness import interleave
from sparring.lab.models.vgg import VGG
from sparring.lab.training.memory import keep_memory


def mlp(dropout: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), dropout(512), nn.Linear(512, 512), nn.ReLU(), dropout(512), nn.Linear(512, 10)
    )


def convnet(dropout: Callable[[int], nn.Module]) -> nn.Module:
    return VGG((32, 32, "M", 64, 64, "M", 128, 128, "M"), hidden=(256, 256), size=32, dropout=dropout)


def step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(sp.nn.parameter_groups(model, lr=1e-4), foreach=True)

    def work() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def naive(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """ARM without replay: the second pass runs the whole model again."""
    objective = sp.Objective(model, sp.cross_entropy, sp.LearnedRates(), replay=False)
    return lambda: objective(x, y)


def compare(
    name: str, make: Callable[..., nn.Module], x: Tensor, y: Tensor, goal: float, rounds: int, repeats: int
) -> None:
    plain = make(lambda features: nn.Dropout(0.5))
    learned = {kind: make(lambda features: sp.nn.BernoulliDropout(features)) for kind in ("ARM", "DisARM", "no replay")}
    concrete = make(lambda features: sp.nn.ConcreteDropout(features, p=0.5))
    arm = sp.recipes.learnable_bernoulli(learned["ARM"], sp.cross_entropy)
    disarm = sp.recipes.learnable_bernoulli(learned["DisARM"], sp.cross_entropy, estimator=sp.DisARM())
    variants = {
        "ARM": step(learned["ARM"], lambda: arm(x, y)),
        "DisARM": step(learned["DisARM"], lambda: disarm(x, y)),
        "ARM, no replay": step(learned["no replay"], naive(learned["no replay"], x, y)),
        "Concrete dropout": step(concrete, lambda: sp.cross_entropy(concrete(x), y).mean()),
    }
    reference = ("plain dropout", step(plain, lambda: sp.cross_entropy(plain(x), y).mean()))
    print(f"\n{name}")
    for key, ratio in interleave(reference, variants, rounds, repeats).items():
        print("  " + ratio.row(goal if key in ("ARM", "DisARM") else None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    keep_memory()
    torch.manual_seed(0)
    y = torch.randint(10, (128,))
    compare("MLP 784-512-512-10, batch 128", mlp, torch.randn(128, 784), y, 1.20, rounds, repeats=20)
    compare(
        "VGG-style convnet, dropout before the classifier, batch 128",
        convnet,
        torch.randn(128, 3, 32, 32),
        y,
        1.05,
        rounds,
        repeats=2,
    )


if __name__ == "__main__":
    main()
