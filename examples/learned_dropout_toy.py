"""Fig. 1 of the learnable Bernoulli dropout paper as numbers: bias, deviation and MSE of gradient estimators, and traces.

Run: python examples/learned_dropout_toy.py [--out figure1.json]
"""

import argparse
import json
from pathlib import Path

import torch

from sparring.lab.toys.lbd import Toy, gradient_grid, traces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures' data as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    toy = Toy.make(options.seed)
    grid = gradient_grid(toy, keeps=(0.2, 0.5, 0.8), samples=options.samples)
    print(f"{'keep':>9} {'exact':>8}  {'method':<9} {'bias':>10} {'z':>7} {'deviation':>10} {'mse':>10}")
    for i, first in enumerate(grid.keeps.tolist()):
        for j, second in enumerate(grid.keeps.tolist()):
            for name, found in grid.moments.items():
                numbers = [float(t[i, j, 0]) for t in (found.bias, found.z, found.deviation, found.mse)]
                row = "{:>10.2e} {:>7.1f} {:>10.2e} {:>10.2e}".format(*numbers)
                print(f"{first:>4}/{second:<4} {float(grid.exact[i, j, 0]):>8.4f}  {name:<9} {row}")
    if options.out:
        options.out.write_text(json.dumps(grid.figures(0) + grid.figures(1) + traces(toy).figures()))


if __name__ == "__main__":
    main()
