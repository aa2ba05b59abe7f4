"""Masked LSTMs and adversarial-dropout steps against `nn.LSTM`: CPU time, one thread, memory kept (strict) or not.

OMP_NUM_THREADS=1 python benchmarks/bench_recurrent.py [--what kernel,step,memory] [--shapes 0,3,4] [--rounds 7] [--loose] [--repeats N]
"""

import argparse
import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

import sparring as sp
from harness import interleave, memory
from sparring.lab.training.memory import keep_memory
from sparring.nn.recurrent.forward import masked_forward

# (T, I, H, B): sequential MNIST, IMDB, AWD-LSTM, two small ones; limits from the project's goals
SHAPES = [(784, 1, 100, 100), (400, 256, 1024, 16), (70, 400, 1150, 20), (64, 1, 100, 64), (40, 300, 128, 32)]
NATIVE = [0.80, 1.15, 1.15, 0.80, 1.05]
MASK_ONLY = [0.55, 0.80, 0.80, 0.55, 0.55]
PLAIN = [1.6, 1.4, 1.4, 1.4, 1.4]
SHARED = [1.1] * 5
STEP = {1: [2.0, 2.45, 2.45, 2.0, 1.7], 2: [2.6, 3.1, 3.1, 2.6, 2.1]}


def switched(native: bool, work: Callable[[], object]) -> Callable[[], object]:
    """The work with the native kernel on or off."""

    def run() -> None:
        os.environ["SPARRING_NATIVE"] = str(int(native))
        work()

    return run


def kernels(shape: tuple[int, int, int, int], at: int, rounds: int, repeats: int) -> None:
    length, inputs, size, batch = shape
    lstm, x = nn.LSTM(inputs, size), torch.randn(length, batch, inputs)
    mask = torch.bernoulli(torch.full((1, batch, size), 0.9)).requires_grad_()
    shared = mask[:, :1].detach().clone()

    def train(*masks: Tensor) -> None:
        lstm.zero_grad()
        output, _ = masked_forward(lstm, x, mask=masks[0]) if masks else lstm(x)
        output[-1].sum().backward()

    def influence() -> None:
        output, _ = masked_forward(lstm, x, mask=mask)
        torch.autograd.grad(output[-1].sum(), mask)

    frozen = mask.detach()
    variants = {
        "native, mask per example": (switched(True, lambda: train(frozen)), NATIVE[at]),
        "native, mask gradient too": (switched(True, lambda: train(mask)), NATIVE[at]),
        "native, mask gradient only": (switched(True, influence), MASK_ONLY[at]),
        "plain PyTorch, mask per example": (switched(False, lambda: train(frozen)), PLAIN[at]),
        "one mask for the batch": (lambda: train(shared), SHARED[at]),
    }
    ratios = interleave(
        ("nn.LSTM forward and backward", train), {k: v[0] for k, v in variants.items()}, rounds, repeats
    )
    for name, ratio in ratios.items():
        print(ratio.row(variants[name][1] if name in variants else None), flush=True)


class Classifier(nn.Module):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, size)
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.transpose(0, 1))[0][-1])


STEPS: dict[str, Callable[[nn.Module], sp.Objective]] = {
    "plain nn.LSTM step": lambda model: sp.Objective(model, sp.cross_entropy),
    "adversarial dropout, K = 1": lambda model: sp.recipes.adversarial_dropout(
        model, sp.cross_entropy, ball=sp.Flips(0.06)
    ),
    "adversarial dropout, K = 2": lambda model: sp.recipes.adversarial_dropout(
        model, sp.cross_entropy, ball=sp.Flips(0.06), steps=2
    ),
    "adversarial dropout, K = 2, both ways": lambda model: sp.recipes.adversarial_dropout(
        model, sp.cross_entropy, by=sp.GreedyFlip(sp.Flips(0.06), steps=2, both_ways=True)
    ),
    "variational dropout": lambda model: sp.recipes.variational_dropout(model, sp.cross_entropy),
    "fraternal dropout": lambda model: sp.recipes.fraternal_dropout(model, sp.cross_entropy),
}


def step_named(name: str, shape: tuple[int, int, int, int], model: nn.Module | None = None) -> Callable[[], object]:
    length, inputs, size, batch = shape
    model = model or Classifier(inputs, size)
    x, y = torch.randn(length, batch, inputs).transpose(0, 1), torch.randint(10, (batch,))
    objective = STEPS[name](model)

    def run() -> None:
        model.zero_grad()
        objective(x, y).backward()

    return switched(True, run)


def steps(shape: tuple[int, int, int, int], at: int, rounds: int, repeats: int) -> None:
    model = Classifier(shape[1], shape[2])
    reference, *others = {name: step_named(name, shape, model) for name in STEPS}.items()
    ratios = interleave(reference, dict(others), rounds, repeats)
    for name, ratio in ratios.items():
        print(ratio.row(STEP[int(name[-1])][at] if name[-1].isdigit() else None), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", default="kernel,step,memory")
    parser.add_argument("--shapes", default="3,4,0,2,1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, help="calls per measurement; by default more for small shapes")
    parser.add_argument("--loose", action="store_true", help="let the allocator return memory (page faults count)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not options.loose:
        keep_memory()
    for at in map(int, options.shapes.split(",")):
        length, inputs, size, batch = SHAPES[at]
        repeats = options.repeats or (5 if length * size < 10_000 else 1)
        print(f"\nT = {length}, I = {inputs}, H = {size}, B = {batch}")
        if "kernel" in options.what:
            kernels(SHAPES[at], at, options.rounds, repeats)
        if "step" in options.what:
            steps(SHAPES[at], at, options.rounds, repeats)
        if "memory" in options.what:
            memory(step_named, list(STEPS), SHAPES[at])


if __name__ == "__main__":
    main()
