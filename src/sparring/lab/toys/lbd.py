"""The toy of section 3.1: gradients of two keep rates, exact and estimated; the data of Fig. 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...estimators import ARM, DisARM, Estimator
from ..report.figures import Figure, curves, heatmap

ESTIMATORS: dict[str, Estimator] = {"ARM": ARM(), "DisARM": DisARM()}


@dataclass(frozen=True)
class Toy:
    """One input, two ReLU units with dropout after them, one output; the data come from the same net without either.

    >>> toy = Toy.make(seed=0)
    >>> toy.x.shape, toy.gradient(torch.zeros(2, dtype=torch.float64)).shape
    (torch.Size([3000]), torch.Size([2]))

    Attributes:
        x: inputs `(N,)`.
        y: targets `(N,)`.
        inner, outer: the fixed weights into and out of the two units.
    """

    x: Tensor
    y: Tensor
    inner: Tensor
    outer: Tensor

    @classmethod
    def make(cls, seed: int = 0, examples: int = 3000) -> "Toy":
        """Random fixed weights and standard normal inputs."""
        generator = torch.Generator().manual_seed(seed)
        inner, outer = (torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2))
        x = torch.randn(examples, generator=generator, dtype=torch.float64)
        return cls(x, (inner @ outer) * x, inner, outer)

    def losses(self, masks: Tensor) -> Tensor:
        """Squared errors `(..., N)` under masks `(..., N, 2)`."""
        units = torch.relu(self.x[:, None] * self.inner) * self.outer  # (N, 2)
        return ((units * masks).sum(-1) - self.y).square()

    def expected(self, logits: Tensor) -> Tensor:
        """The objective: the mean squared error averaged over all four masks, differentiable in the logits."""
        keep = torch.sigmoid(logits)
        total = torch.zeros((), dtype=logits.dtype)
        for bits in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
            mask = torch.tensor(bits, dtype=logits.dtype)
            chance = torch.where(mask > 0.5, keep, 1 - keep).prod()
            total = total + chance * self.losses(mask.expand(len(self.x), 2)).mean()
        return total

    def gradient(self, logits: Tensor) -> Tensor:
        """The exact gradient `(2,)`."""
        point = logits.detach().requires_grad_()
        return torch.autograd.grad(self.expected(point), point)[0]


def estimates(toy: Toy, logits: Tensor, estimator: Estimator, samples: int) -> Tensor:
    """Independent gradient estimates `(samples, 2)`, each from one mask per example."""
    n = len(toy.x)
    masks = (torch.rand(samples * n, 2, dtype=torch.float64) < torch.sigmoid(logits)).double()

    def evaluate(z: list[Tensor]) -> Tensor:
        return toy.losses(z[0].reshape(samples, n, 2)).flatten()

    (gradient,) = estimator.gradient([logits], [masks], evaluate([masks]), evaluate)
    return gradient.reshape(samples, n, 2).mean(1)


def concrete_estimates(toy: Toy, logits: Tensor, temperature: float, samples: int) -> Tensor:
    """Gradients `(samples, 2)` of the loss under Concrete masks `sigmoid((logits + logit u)/t)`, reparameterised."""
    point = logits.detach().expand(samples, 2).clone().requires_grad_()
    noise = torch.logit(torch.rand(samples, len(toy.x), 2, dtype=torch.float64), eps=1e-12)
    masks = torch.sigmoid((point[:, None] + noise) / temperature)
    return torch.autograd.grad(toy.losses(masks).mean(1).sum(), point)[0]


@dataclass(frozen=True)
class Moments:
    """How estimates differ from the truth, over a grid of keep rates; the last axis counts the two logits.

    Attributes:
        bias: mean error; its own standard error is `deviation / sqrt(samples)`.
        deviation: standard deviation of one estimate.
        mse: mean squared error of one estimate.
        samples: estimates at each point.
    """

    bias: Tensor
    deviation: Tensor
    mse: Tensor
    samples: int

    @property
    def z(self) -> Tensor:
        """Bias in units of its standard error: beyond about 4 it is no accident."""
        return self.bias / (self.deviation / math.sqrt(self.samples))


@dataclass(frozen=True)
class GradientGrid:
    """Panels (a) to (f) of Fig. 1: exact gradients `(G, G, 2)` and every method's moments over keep rates `(G,)`."""

    keeps: Tensor
    exact: Tensor
    moments: Mapping[str, Moments]

    def figures(self, logit: int = 0) -> list[Figure]:
        """Heat maps of bias, standard deviation and mean squared error for one of the two logits."""
        drawn = []
        for name, found in self.moments.items():
            for kind in ("bias", "deviation", "mse"):
                rows = getattr(found, kind)[:, :, logit]
                drawn.append(heatmap(f"{name}: {kind} (alpha {logit + 1})", "keep 2", "keep 1", rows))
        return drawn


def gradient_grid(
    toy: Toy, keeps: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9), samples: int = 200, temperature: float = 2 / 3
) -> GradientGrid:
    """Compare ARM, DisARM and Concrete with the exact gradient at every pair of keep rates.

    >>> _ = torch.manual_seed(0)
    >>> grid = gradient_grid(Toy.make(seed=0, examples=500), keeps=(0.5,), samples=50)
    >>> sorted(grid.moments), grid.exact.shape
    (['ARM', 'Concrete', 'DisARM'], torch.Size([1, 1, 2]))

    Args:
        toy: the problem.
        keeps: keep rates of both units.
        samples: Monte-Carlo estimates at each point.
        temperature: of the Concrete relaxation.
    """
    rates = torch.tensor(keeps, dtype=torch.float64)
    size = len(rates)
    exact = torch.zeros(size, size, 2, dtype=torch.float64)
    names = [*ESTIMATORS, "Concrete"]
    errors = {name: torch.zeros(size, size, samples, 2, dtype=torch.float64) for name in names}
    for i in range(size):
        for j in range(size):
            logits = torch.logit(torch.stack([rates[i], rates[j]]))
            exact[i, j] = toy.gradient(logits)
            for name, estimator in ESTIMATORS.items():
                errors[name][i, j] = estimates(toy, logits, estimator, samples) - exact[i, j]
            errors["Concrete"][i, j] = concrete_estimates(toy, logits, temperature, samples) - exact[i, j]
    moments = {n: Moments(e.mean(2), e.std(2), e.square().mean(2), samples) for n, e in errors.items()}
    return GradientGrid(rates, exact, moments)


@dataclass(frozen=True)
class Traces:
    """Panels (g) and (h) of Fig. 1: gradients along a descent with the exact gradient, `(steps, 2)` each."""

    logits: Tensor
    exact: Tensor
    estimated: Mapping[str, Tensor]

    def figures(self) -> list[Figure]:
        """One set of curves for each logit."""
        steps = list(range(len(self.exact)))
        return [
            curves(
                f"Gradient of alpha {k + 1}",
                "step",
                [float(step) for step in steps],
                "gradient",
                {"exact": self.exact[:, k], **{name: values[:, k] for name, values in self.estimated.items()}},
            )
            for k in range(2)
        ]


def traces(toy: Toy, steps: int = 100, lr: float = 1.0, samples: int = 50, temperature: float = 2 / 3) -> Traces:
    """Follow the exact gradient from keep rates of one half and note every method's mean estimate on the way.

    >>> path = traces(Toy.make(seed=0, examples=200), steps=3, samples=5)
    >>> path.exact.shape, sorted(path.estimated)
    (torch.Size([3, 2]), ['ARM', 'Concrete', 'DisARM'])
    """
    logits = torch.zeros(2, dtype=torch.float64)
    points, exact = [], []
    estimated: dict[str, list[Tensor]] = {name: [] for name in [*ESTIMATORS, "Concrete"]}
    for _ in range(steps):
        points.append(logits)
        exact.append(toy.gradient(logits))
        for name, estimator in ESTIMATORS.items():
            estimated[name].append(estimates(toy, logits, estimator, samples).mean(0))
        estimated["Concrete"].append(concrete_estimates(toy, logits, temperature, samples).mean(0))
        logits = logits - lr * exact[-1]
    return Traces(torch.stack(points), torch.stack(exact), {n: torch.stack(v) for n, v in estimated.items()})
