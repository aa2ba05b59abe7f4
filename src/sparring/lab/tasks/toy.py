"""The toy of learnable Bernoulli dropout (section 3.1): two hidden units whose keep rates alone are learned.

One input, two ReLU units with dropout, one output; the weights are random and fixed, the data linear. With four masks
the expected loss and its gradient can be summed exactly, so estimators are judged against the truth. Measured in
sparring's notes at keep .5 / .5 (true gradient -.0499): ARM bias 5e-5, DisARM 1e-5, Concrete at temperature .67 bias
.0106. ARM is unbiased; its mean squared error is not always below Concrete's.
"""

import torch
from torch import Tensor, nn

import sparring as sp

from ...estimators import ARM, DisARM, Enumerate, Estimator, LeaveOneOut, Reinforce
from ...nn import BernoulliDropout, ConcreteDropout
from ..report.figures import Figure, bars, histogram
from ..task import Data, Method, Setting, Split, Task, Trainable, Value

ESTIMATORS: dict[str, Estimator] = {
    "arm": ARM(),
    "disarm": DisARM(),
    "leave_one_out": LeaveOneOut(),
    "reinforce": Reinforce(),
    "exact": Enumerate(),
}


def load(setting: Setting) -> Data:
    """`y = (x w1) w2` with the network's own weights: linear data, as in the paper."""
    draw = torch.Generator().manual_seed(setting.seed)
    first, second = torch.randn(2, generator=draw), torch.randn(2, generator=draw)
    x = torch.randn(setting["examples"], 1, generator=draw)
    y = (x * first) @ second
    cut = len(x) * 4 // 5
    return Data(Split(x[:cut], y[:cut]), Split(x[cut:], y[cut:]), extra={"weights": (first, second)})


class TwoUnits(nn.Module):
    """The network: fixed weights, a dropout layer that learns."""

    def __init__(self, weights: tuple[Tensor, Tensor], dropout: nn.Module) -> None:
        super().__init__()
        first, second = weights
        self.hidden, self.out = nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.hidden.weight.data.copy_(first[:, None])
        self.out.weight.data.copy_(second[None])
        self.hidden.requires_grad_(False)
        self.out.requires_grad_(False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:  # (B, 1) -> (B,)
        return self.out(self.dropout(self.hidden(x).relu())).squeeze(-1)


def build(setting: Setting, data: Data) -> nn.Module:
    """Bernoulli or Concrete dropout after the hidden layer, both starting at `keep`."""
    if setting["dropout"] == "concrete":
        dropout: nn.Module = ConcreteDropout(2, p=1 - setting["keep"], temperature=setting["temperature"])
    else:
        dropout = BernoulliDropout(2, keep=setting["keep"])
    return TwoUnits(data.extra["weights"], dropout)


def objective(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The squared error; Bernoulli rates get their gradient from the estimator."""
    if setting["dropout"] == "concrete":
        return sp.Objective(model, sp.squared_loss)
    return sp.recipes.learnable_bernoulli(model, sp.squared_loss, estimator=ESTIMATORS[setting["dropout"]])


def expected_loss(model: nn.Module, split: Split, keep: Tensor) -> Tensor:
    """The exact mean squared error under Bernoulli masks with rates `keep`: a sum over the four masks."""
    assert isinstance(model, TwoUnits)
    hidden = model.hidden(split.inputs).relu()
    total = hidden.new_zeros(())
    for mask in torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])):
        chance = torch.where(mask > 0, keep, 1 - keep).prod()
        total = total + chance * (model.out(hidden * mask).squeeze(-1) - split.targets).square().mean()
    return total


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """The exact expected loss, and the rates. A Concrete layer is judged as the Bernoulli dropout it stands for."""
    assert isinstance(model, TwoUnits)
    keep = model.dropout.keep
    assert isinstance(keep, Tensor)
    keep = keep.detach()
    rates = {f"keep {unit + 1}": float(rate) for unit, rate in enumerate(keep.flatten())}
    return {"expected loss": float(expected_loss(model, split, keep)), **rates}


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Figure 1: gradient estimates for the first logit at the starting rates, against the true gradient."""
    start = torch.full((2,), setting["keep"])
    logits = torch.logit(start).requires_grad_()
    with torch.enable_grad():
        (truth,) = torch.autograd.grad(expected_loss(model, data.train, torch.sigmoid(logits)), logits)
        fresh = build(setting, data).train()  # the weights come with the data, so this is the model before training
        trained, estimates = objective(fresh, setting, data), []
        rate = next(parameter for parameter in fresh.parameters() if parameter.requires_grad)
        sign = -1.0 if setting["dropout"] == "concrete" else 1.0  # its parameter is the logit of the *drop* rate
        for _ in range(setting["estimates"]):
            (loss,) = trained.steps(data.train.inputs, data.train.targets)
            (gradient,) = torch.autograd.grad(loss, rate)
            estimates.append(sign * float(gradient.flatten()[0]))
    values = torch.tensor(estimates, dtype=torch.float64)
    bias, error = float(values.mean() - truth[0]), float((values - truth[0]).square().mean())
    note = f"true gradient {float(truth[0]):.4f}; bias {bias:.2g}, standard deviation {float(values.std()):.2g}, MSE {error:.2g}"
    learned = {
        name: [rate] for name, rate in evaluate(model, data.validation, setting).items() if name.startswith("keep")
    }
    return [
        histogram("Gradient estimates of the first logit", "estimate", {"estimates": values}, note),
        bars("Learned keep rates", "keep rate", learned),
    ]


PAPER: dict[str, Value] = {
    "examples": 3000,
    "keep": 0.5,
    "temperature": 2 / 3,
    "dropout": "concrete",
    "estimates": 200,
    "epochs": 20,
    "batch": 100,
    "rates_lr": 0.05,
}

METHODS = (
    Method("concrete", "soft masks, ordinary back-propagation: biased", objective, {"dropout": "concrete"}),
    Method("arm", "ARM, the paper's estimator", objective, {"dropout": "arm"}),
    Method("disarm", "DisARM: as ARM, half the variance", objective, {"dropout": "disarm"}),
    Method("leave_one_out", "score function with a leave-one-out baseline", objective, {"dropout": "leave_one_out"}),
    Method("reinforce", "score function", objective, {"dropout": "reinforce"}),
    Method("exact", "the true gradient, summed over all masks", objective, {"dropout": "exact"}),
)

TASKS = (
    Task(
        name="dropout-toy",
        summary="learn two keep rates where the true gradient is known",
        score="expected loss",
        better="lower",
        scales={"tiny": {**PAPER, "examples": 600, "epochs": 5, "estimates": 60}, "paper": PAPER},
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        figures=figures,
        baseline="concrete",
        paper="Learnable Bernoulli Dropout for Bayesian Deep Learning (Boluki et al. 2020), section 3.1 and figure 1",
    ),
)
