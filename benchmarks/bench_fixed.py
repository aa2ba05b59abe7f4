"""The fixed cost of a step: three linear layers, where the model itself takes next to no time, and 1,500 cheap modules.

OMP_NUM_THREADS=1 python benchmarks/bench_fixed.py [--rounds 9]

Each objective against the loop that a user would write by hand for the same method, with the same passes and nothing frozen in
either. Then VAT behind 1,500 modules that do next to nothing, with and without prefix replay, against a plain step: once as an
`nn.Sequential`, and once in a loop that nobody can look into.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp
from harness import interleave

Step = Callable[[], None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


def plain(x: Tensor, y: Tensor) -> Step:
    model = network()
    return lambda: F.cross_entropy(model(x), y).backward()


def vat_by_hand(x: Tensor, y: Tensor) -> Step:
    model = network()

    def step() -> None:
        logits = model(x)
        clean = logits.detach().softmax(-1)
        probe = (5.0 * unit(torch.randn_like(x))).requires_grad_()
        (slope,) = torch.autograd.grad(F.kl_div(model(x + probe).log_softmax(-1), clean, reduction="sum"), probe)
        moved = model(x + unit(slope)).log_softmax(-1)
        (F.cross_entropy(logits, y) + F.kl_div(moved, clean, reduction="batchmean")).backward()

    return step


def salt_by_hand(x: Tensor, y: Tensor) -> Step:
    model = network()

    def step() -> None:
        logits = model(x)
        clean = logits.log_softmax(-1)
        start = (1e-5 * torch.randn_like(x)).requires_grad_()
        gap = clean.exp() * (clean - model(x + start).log_softmax(-1))
        (slope,) = torch.autograd.grad(gap.sum(), start, create_graph=True)
        delta = start + unit(slope)
        delta = delta * (1 / delta.norm(dim=1, keepdim=True)).clamp_max(1.0)
        gap = clean.exp() * (clean - model(x + delta).log_softmax(-1))
        (F.cross_entropy(logits, y) + gap.sum(-1).mean()).backward()

    return step


class Cheap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.001


class Loop(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


def many(kind: type[nn.Sequential] | type[Loop], make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(20, 20), *(make() for _ in range(1500)), nn.Linear(20, 10)]
    return kind(*layers) if kind is nn.Sequential else kind(layers)


def behind_many(x: Tensor, y: Tensor, rounds: int) -> None:
    print("\nVAT at the last of 1,502 modules; ratio to a plain step")
    makes: dict[str, Callable[[], nn.Module]] = {"cheap modules": Cheap, "linear layers": lambda: nn.Linear(20, 20)}
    for where in (nn.Sequential, Loop):
        for what, make in makes.items():
            model = many(where, make)
            variants = {
                name: of(sp.recipes.vat(many(where, make), sp.cross_entropy, "1501", replay=replay), x, y)
                for name, replay in (("without replay", False), ("with replay", True))
            }

            def step(model: nn.Module = model) -> None:
                F.cross_entropy(model(x), y).backward()

            plain, without, replayed = interleave((f"{what} in {where.__name__}", step), variants, rounds, 1).values()
            print(plain.row(), without.row(), replayed.row(without.median), sep="\n")


def of(objective: sp.Objective, x: Tensor, y: Tensor) -> Step:
    return lambda: objective(x, y).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x, y = torch.randn(16, 20), torch.randint(10, (16,))
    loss = sp.cross_entropy
    pairs = (
        ("plain loop", plain(x, y), "objective without terms", sp.Objective(network(), loss), 1.4),
        ("VAT by hand", vat_by_hand(x, y), "vat", sp.recipes.vat(network(), loss), 1.3),
        ("SALT by hand", salt_by_hand(x, y), "salt", sp.recipes.salt(network(), loss), 1.7),
    )
    for name, reference, what, objective, goal in pairs:
        first, second = interleave((name, reference), {what: of(objective, x, y)}, rounds, 100).values()
        print(first.row())
        print(second.row(goal))
    behind_many(x, y, rounds)


if __name__ == "__main__":
    main()
