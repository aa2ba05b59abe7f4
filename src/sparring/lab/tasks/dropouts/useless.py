"""Inputs known to be useless: do learned keep rates tell them from useful ones?"""

import torch
from torch import Tensor, nn

from ....nn import BernoulliDropout, ConcreteDropout, keep_rates
from ...report.figures import Figure, bars
from ...task import Data, Method, Setting, Split, Task
from .layers import OWN, learned, plain


def load(setting: Setting) -> Data:
    """Ten inputs that decide a class through a random network, ten of pure noise, in a fixed random order."""
    generator = torch.Generator().manual_seed(0)
    count, useful = setting["examples"], setting["useful"]
    width = 2 * useful
    order = torch.randperm(width, generator=generator)
    x = torch.randn(3 * count, width, generator=generator)
    first, second = torch.randn(useful, 16, generator=generator), torch.randn(16, 3, generator=generator)
    y = (torch.tanh(x[:, :useful] @ first / useful**0.5) @ second).argmax(1)
    train, validation, test = (Split(*part) for part in zip(x[:, order].split(count), y.split(count)))
    return Data(train, validation, test, extra={"useful": order < useful})


def build(setting: Setting, data: Data) -> nn.Module:
    """A small network whose inputs are dropped; it carries the answer key to score the separation."""
    useful: Tensor = data.extra["useful"]
    kind = setting["dropout"]
    layer: nn.Module = nn.Dropout(0.2)
    if kind == "bernoulli":
        layer = BernoulliDropout(len(useful), keep=0.8)
    elif kind == "concrete":
        layer = ConcreteDropout(len(useful), p=0.2, temperature=setting["temperature"])
    model = nn.Sequential(layer, nn.Linear(len(useful), 64), nn.ReLU(), nn.Linear(64, 3))
    model.register_buffer("useful", useful)
    return model


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy in percent; for learned rates the mean keep of useful and useless inputs and the area under the curve."""
    logits = model(split.inputs)
    found = {"accuracy": 100 * float((logits.argmax(1) == split.targets).double().mean())}
    for rate in keep_rates(model).values():
        useful: Tensor = model.useful  # type: ignore[assignment]
        kept, dropped = rate[useful], rate[~useful]
        pairs = (kept[:, None] > dropped).double() + 0.5 * (kept[:, None] == dropped).double()
        found |= {
            "keep_useful": float(kept.mean()),
            "keep_useless": float(dropped.mean()),
            "separation_auc": float(pairs.mean()),
        }
    return found


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """The learned keep rates of useful and useless inputs."""
    useful: Tensor = data.extra["useful"]
    rates = list(keep_rates(model).values())
    return [bars("Keep rates", "keep", {"useful": rates[0][useful], "useless": rates[0][~useful]})] if rates else []


METHODS = (
    Method("fixed", "fixed dropout of 0.2 on every input", plain),
    Method("arm", "learned keep rates by ARM", learned, {"dropout": "bernoulli"}),
    Method("disarm", "learned keep rates by DisARM", learned, {"dropout": "bernoulli", "estimator": "disarm"}),
    Method("concrete", "learned rates by relaxation", plain, {"dropout": "concrete"}),
)

TASK = Task(
    name="useless-inputs",
    summary="do learned keep rates tell ten useful inputs from ten of noise?",
    score="accuracy",
    better="higher",
    scales={"tiny": {**OWN, "examples": 1000, "useful": 10, "temperature": 0.1, "epochs": 40, "batch": 50}},
    methods=METHODS,
    load=load,
    build=build,
    evaluate=evaluate,
    figures=figures,
    baseline="fixed",
)
