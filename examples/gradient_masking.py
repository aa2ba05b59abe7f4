"""Train small ensembles on digits with and without priority dropout, and audit each for gradient masking.

    python examples/gradient_masking.py --seeds 3 --epochs 100

Needs scikit-learn for the digits (`pip install 'sparring[lab]'`); AutoAttack joins in when pyautoattack is installed.
"""

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparring as sp
from sparring.ensembles import Ensemble, EnsembleDropout, LaplacePriorityDropout, member_cross_entropy

Split = tuple[Tensor, Tensor, Tensor, Tensor]


def digits(seed: int = 0) -> Split:
    """1,297 digits to train on and 500 to test, pixels in [0, 1]."""
    raw = load_digits()
    x, y = torch.tensor(raw.images / 16, dtype=torch.float32)[:, None], torch.tensor(raw.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    return x[:1297], y[:1297], x[1297:], y[1297:]


def member() -> nn.Module:
    """One network of the ensemble."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(dropout: nn.Module | None, data: Split, epochs: int, seed: int) -> Ensemble:
    """Three members, the mean of their cross-entropies, Adam."""
    torch.manual_seed(seed)
    ensemble = Ensemble([member() for _ in range(3)], head="5", dropout=dropout)
    optimiser = torch.optim.Adam(ensemble.parameters(), 2e-3)
    x, y = data[:2]
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            member_cross_entropy(ensemble(x[rows]), y[rows]).mean().backward()
            optimiser.step()
    return ensemble.eval()


def louder(ensemble: Ensemble, factor: float) -> Ensemble:
    """The same ensemble with every member's logits multiplied: no more robust, but harder to differentiate."""
    twin = copy.deepcopy(ensemble)
    with torch.no_grad():
        for part in twin.members:
            for parameter in part.head.parameters():
                parameter.mul_(factor)
    return twin


def main() -> None:
    """Print one line per model: mean over the seeds, and the verdict of each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--radius", type=float, default=0.1)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    data, ball = digits(), sp.Linf(settings.radius, box=(0, 1))

    def plain(seed: int) -> Ensemble:
        return train(None, data, settings.epochs, seed)

    models: dict[str, Callable[[int], Ensemble]] = {
        "plain": plain,
        "plain, logits x 20": lambda seed: louder(plain(seed), 20.0),
        "dropout keep .2, no rescale": lambda seed: train(EnsembleDropout(0.2, False), data, settings.epochs, seed),
        "LPD, paper (no rescale)": lambda seed: train(
            LaplacePriorityDropout(gamma=1000.0), data, settings.epochs, seed
        ),
        "LPD, rescaled": lambda seed: train(
            LaplacePriorityDropout(gamma=1000.0, rescale=True), data, settings.epochs, seed
        ),
    }
    columns = ["clean", "FGSM", "PGD", "margin", "all", "zero grad", "gap"]
    print(f"{'model':<30}" + "".join(f"{name:>10}" for name in columns) + "  verdicts")
    for name, make in models.items():
        rows, verdicts = [], []
        for seed in range(settings.seeds):
            result = sp.metrics.audit(make(seed), *data[2:], ball, batch_size=500)
            found = {check.name: check.found for check in result.checks}
            rows.append([
                100 * result.clean,
                100 * result.attacks["FGSM, one step"].plain,
                100 * result.usual,
                100 * result.attacks["PGD on the margin"].plain,
                100 * result.lowest,
                float(found["zero gradients"].split()[0]),
                float(found["logit gap"].split()[1].rstrip(",")),
            ])  # fmt: skip
            verdicts.append(result.verdict)
        means = [statistics.mean(column) for column in zip(*rows)]
        spread = [statistics.stdev(column) if len(rows) > 1 else 0.0 for column in zip(*rows)]
        print(f"{name:<30}" + "".join(f"{mean:>10.1f}" for mean in means) + "  " + ", ".join(verdicts), flush=True)
        print(f"{'  standard deviation':<30}" + "".join(f"{value:>10.1f}" for value in spread), flush=True)


if __name__ == "__main__":
    main()
