"""How near the greedy adversary comes to the exact worst mask: mean divergence over random models, as a share of the optimum.

OMP_NUM_THREADS=1 python benchmarks/greedy_ratio.py [--models 8] [--flips 3]
"""

import argparse

import torch
from torch import Tensor, nn

import sparring as sp
from sparring.metrics import perturb, worst_masks


class Last(nn.Module):
    """An LSTM as torch initialises it and a classifier of its last state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, size, batch_first=True)
        self.head = nn.Linear(size, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--flips", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    site, flips = sp.Recurrent("rnn"), options.flips
    print(
        "| H | random | K = 1 | K = 2 | K = 2, 4 starts | K = 2, 4 starts, through the scale | K = 2, both ways "
        "| K = 2, both ways, through the scale |\n|---|---|---|---|---|---|---|---|"
    )
    for size in (6, 8, 10, 12, 14, 16):
        ball = sp.Flips((flips + 1e-3) / size)
        players = [
            sp.GreedyFlip(ball), sp.GreedyFlip(ball, 2), sp.GreedyFlip(ball, 2, restarts=4),
            sp.GreedyFlip(ball, 2, restarts=4, through_scale=True),
            sp.GreedyFlip(ball, 2, both_ways=True), sp.GreedyFlip(ball, 2, both_ways=True, through_scale=True),
        ]  # fmt: skip
        reached = torch.zeros(len(players) + 1)
        best = 0.0
        for seed in range(options.models):
            torch.manual_seed(seed)
            model, x = Last(size), torch.randn(16, 8, 3)
            best += float(worst_masks(model, x, site, size, flips).divergence.mean())
            mask = ball.sample(torch.ones(16, size), torch.tensor(flips))
            scaled = mask / mask.mean(1, keepdim=True)
            reached[0] += sp.js(model(x), sp.perturbed_call(model, {site: scaled}, x)).mean().detach()
            reached[1:] += torch.tensor(
                [float(perturb(model, x, site, player).divergence.mean()) for player in players]
            )
        print(f"| {size} | " + " | ".join(f"{value:.2f}" for value in reached / best) + " |", flush=True)


if __name__ == "__main__":
    main()
