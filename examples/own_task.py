"""A task of your own in one file: `sparring compare examples/own_task.py --methods plain,vat --seeds 3`."""

import torch
from sklearn.datasets import make_moons
from torch import nn

import sparring as sp
from sparring.lab.task import Data, Method, Setting, Split, Task, Trainable


def load(setting: Setting) -> Data:
    """Two moons, with as many examples as the setting says; must depend on nothing but the setting."""
    points, labels = make_moons(setting["examples"] + 400, noise=0.2, random_state=0)
    inputs, targets = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
    parts = torch.arange(len(inputs)).split([setting["examples"], 200, 200])
    return Data(*(Split(inputs[rows], targets[rows]) for rows in parts))


def build(setting: Setting, data: Data) -> nn.Module:
    """A small network; any `nn.Module` will do."""
    return nn.Sequential(nn.Linear(2, setting["width"]), nn.ReLU(), nn.Linear(setting["width"], 2))


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """The figures of a split; the one called `score` below decides."""
    right = model(split.inputs).argmax(-1) == split.targets
    return {"accuracy": 100 * float(right.float().mean())}


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    return sp.Objective(model, sp.cross_entropy)


def vat(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    return sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(setting["radius"]))


TASK = Task(
    name="moons",
    summary="two moons, few examples",
    score="accuracy",
    better="higher",
    scales={"tiny": {"examples": 60, "width": 32, "epochs": 20, "batch": 20, "lr": 0.01}},
    methods=(
        Method("plain", "cross entropy and nothing else", plain),
        Method("vat", "consistency at the worst point nearby", vat, {"radius": 0.3}),
    ),
    load=load,
    build=build,
    evaluate=evaluate,
)
