"""What SALT's interaction does on data without labels: digits with 50 labels, four seeds (about ten minutes of one core)."""

import argparse
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparring as sp


def error(seed: int, interaction: float, start: float, steps: int = 1000, measured: tuple[int, ...] = ()) -> float:
    """Test error in per cent of one network; says how large the interaction was in the measured steps."""
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = (images / 16).float()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    test, rest = order[:500], order[500:]
    few = torch.cat([rest[labels[rest] == digit][:5] for digit in range(10)])
    torch.manual_seed(seed)

    def layer(inputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, 200), nn.BatchNorm1d(200), nn.ReLU()]

    model = nn.Sequential(*layer(64), *layer(200), nn.Linear(200, 10))
    objective = sp.recipes.salt(
        model,
        sp.cross_entropy,
        ball=sp.L2(1.0),
        start=start,
        interaction=interaction,
        measure_interaction_every=50 if measured else 0,
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 * (1 - step / steps)))
    for step in range(steps):
        more: Tensor = rest[torch.randint(len(rest), (128,), generator=generator)]
        optimizer.zero_grad()
        objective(images[few], labels[few], unlabelled=images[more]).backward()
        if step in measured:
            size = objective.diagnostics["unlabelled/salt/interaction"]
            print(f"interaction {interaction:g}, step {step}: {size:.2g} of the leader's own gradient", flush=True)
        optimizer.step()
        schedule.step()
    return 100 * float((model.eval()(images[test]).argmax(1) != labels[test]).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--measure", action="store_true", help="only show how large the interaction is, in 151 steps of one seed"
    )
    given = parser.parse_args()
    seeds = range(given.seeds)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.measure:
        for interaction in (0.1, 1.0):
            error(0, interaction, 1e-5, 151, measured=(1, 10, 50, 150))
        raise SystemExit
    for start in (1e-5, 0.125):
        for interaction in (0.0, 0.1, 1.0):
            errors = [error(seed, interaction, start) for seed in seeds]
            print(
                f"start {start:g}, interaction {interaction:g}: {sum(errors) / len(errors):.1f} %", errors, flush=True
            )
