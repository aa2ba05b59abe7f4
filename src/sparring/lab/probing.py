"""Probing: how much do the frozen features of a trained model know about another task? (SALT, section 4.5, figure 4)

The features are what enters the last linear layer that runs. A linear probe is fitted on a random part of the other
task's training examples, another part for every seed, and scored as the task scores its models.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import LabError, first_line
from .registry import task as find
from .report.figures import violins
from .runs.files import write_json
from .runs.load import load_run
from .task import Setting, Split
from .training.train import undisturbed

SEEDS = 10


@torch.no_grad()
def features(model: nn.Module, split: Split, size: int = 64) -> Tensor:
    """What enters the head for every example of a split, (N, width).

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> features(model, Split(torch.zeros(5, 2))).shape
    torch.Size([5, 3])
    """
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    found = []
    try:
        with undisturbed(model):
            for start in range(0, len(split), size):
                inputs, _ = split.batch(slice(start, min(start + size, len(split))))
                seen.clear()
                model(**inputs) if isinstance(inputs, dict) else model(inputs)
                if not seen or seen[-1].dim() != 2 or len(seen[-1]) != min(size, len(split) - start):
                    shape = tuple(seen[-1].shape) if seen else "none"
                    raise LabError(
                        f"probing needs a last linear layer over one row an example; its inputs here: {shape}"
                    )
                found.append(seen[-1].float().cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(found)


class Probe(nn.Module):
    """A linear layer over frozen features, fitted in closed form or to the optimum: no seed of its own.

    Args:
        x: features (N, width).
        y: classes, or scores as floats.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__()
        from sklearn.linear_model import LogisticRegression, Ridge

        self.centre, self.scale = x.mean(0), x.std(0).clamp_min(1e-6)
        inputs, wanted = ((x - self.centre) / self.scale).numpy(), y.numpy()
        fitted: Any = Ridge() if y.is_floating_point() else LogisticRegression(max_iter=2000)
        fitted.fit(inputs, wanted)
        if not y.is_floating_point() and list(fitted.classes_) != list(range(len(fitted.classes_))):
            raise LabError(f"a probe numbers its answers from 0, the classes here are {fitted.classes_.tolist()}")
        weight, bias = np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)
        if not y.is_floating_point() and len(weight) == 1:  # two classes: the first one's logit is 0
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        self.weight, self.bias = torch.from_numpy(weight).float(), torch.from_numpy(bias).float()

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.centre) / self.scale) @ self.weight.T + self.bias


def like(setting: Setting, name: str, pretrained: bool) -> Setting:
    """The setting of another task's data that a run's model can read: same encoder, lengths and scale."""
    entry = find(name)
    shared = {key: value for key, value in setting.values.items() if key in ("encoder", "length")}
    if name != setting.task and not pretrained:  # the same numbers are other words there
        raise LabError(
            f"a run of {setting.task} with encoder={shared.get('encoder')} knows only its own words; probe {setting.task}, "
            "or train with a pretrained encoder"
        )
    values = {key: setting[key] for key in setting.values if name == setting.task} or shared
    known = entry.setting(entry.baseline, setting.scale).values
    return entry.setting(
        entry.baseline, setting.scale, 0, setting.data, {key: value for key, value in values.items() if key in known}
    )


def probe_run(folder: Path, name: str, data: Path | None = None, examples: int = 1000) -> dict[str, list[float]]:
    """The figures of a linear probe on a task, one for each of ten seeds; they are kept beside the run for its report.

    Args:
        folder: a run with weights.
        name: the task to probe; the run's own, or one that the same encoder reads.
        data: folder of the real data.
        examples: training examples of a probe, at most four fifths of what there is.
    """
    session = load_run(folder, data)
    setting = like(session.setting, name, pretrained=hasattr(session.model, "config"))  # as all of transformers' models
    entry, other = find(name), find(name).load(setting)
    test = other.test or other.validation
    known, asked = features(session.model, other.train), features(session.model, test)
    size = min(examples, max(2, 4 * len(known) // 5))
    inputs = {"features": asked} if isinstance(test.inputs, dict) else asked
    split = replace(test, inputs=inputs, collate=None, lengths=None)  # of the same parts as what it stands for
    figures: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        index = torch.from_numpy(np.random.default_rng(seed).permutation(len(known))[:size])
        wanted = other.train.targets[index]
        if not wanted.is_floating_point() and len(wanted.unique()) < len(other.train.targets.unique()):
            raise LabError(f"{size} examples of {name} do not show all of its classes; a probe needs more of them")
        probe = Probe(known[index], wanted)
        try:
            scores = entry.evaluate(probe, split, setting)
        except ValueError as error:
            raise LabError(f"{name} cannot score a linear probe: {first_line(error)}") from error
        for figure, value in scores.items():
            figures.setdefault(figure, []).append(value)
    note = f"linear probes on frozen features, {size} examples, {SEEDS} seeds"
    picture = violins(f"Probe: {name}", entry.score, {"probe": figures[entry.score]}, note)
    write_json(folder / f"probe-{name}.json", {"figures": [picture]})
    return figures
