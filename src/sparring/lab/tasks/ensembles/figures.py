"""Figures 2 and 3 of the paper: accuracy against radius until nothing is left, and certified margins."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from .... import attacks
from ....metrics.certified import certify
from ....metrics.diversity import gradient_diversity
from ....metrics.robustness import robust_accuracy
from ...report.figures import Figure, curves, heatmap, histogram
from ...task import Data, Setting
from .measures import bare, some
from .methods import euclidean, pixels


def draw(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """What the setting asks for: `swept` images under growing radii, `certified` images with a certificate."""
    assert data.test is not None
    model, drawn = bare(model), []
    if setting["swept"]:
        inputs, targets = some(data.test, setting["swept"])
        largest = float(inputs[0].numel()) ** 0.5
        drawn += [
            swept(model, inputs, targets, pixels, setting["radius"] / 4, 1.0, "L-infinity"),
            swept(model, inputs, targets, euclidean, setting["radius"] * largest / 8, largest, "L2"),
            heatmap(
                "Mean cosine of members' input gradients",
                "member",
                "member",
                gradient_diversity(model, inputs, targets).pairs(),
            ),
        ]
    if setting["certified"]:
        drawn.append(certified(model, data, setting))
    return drawn


def swept(
    model: nn.Module, inputs: Tensor, targets: Tensor, ball: Any, first: float, largest: float, norm: str
) -> Figure:
    """Figure 3: accuracy under PGD at radii that double until nothing stays right (or every input is in reach)."""
    radii: list[float] = [0.0]
    lines: dict[str, list[float]] = {}
    while True:
        for loss in ("cross_entropy", "margin"):
            attack = attacks.PGD(ball(radii[-1]), loss=loss)
            left = robust_accuracy(model, attack, inputs, targets).plain
            lines.setdefault(loss.replace("_", " "), []).append(100 * left)
        if not any(line[-1] for line in lines.values()) or radii[-1] >= largest:
            break
        radii.append(min(largest, 2 * radii[-1] or first))
    note = "A gap between the two lines is gradient masking: the attack fails, the model is no stronger."
    if any(line[-1] for line in lines.values()):
        note += f" Something stays right at radius {radii[-1]:.3g}, where every input is allowed: the attack fails."
    return curves(f"Accuracy under PGD, {norm}", f"radius ({norm})", radii, "accuracy (%)", lines, note=note)


def certified(model: nn.Module, data: Data, setting: Setting) -> Figure:
    """Figure 2: lower bounds on the margin (CROWN, eq. 8 and 9) of the first images that the ensemble gets right."""
    assert data.test is not None
    kept: list[Tensor] = []
    truths: list[Tensor] = []
    for inputs, targets in data.test.batches(500):
        with torch.no_grad():
            right = model(inputs).logits.argmax(-1) == targets
        kept.append(inputs[right])
        truths.append(targets[right])
        if sum(map(len, truths)) >= setting["certified"]:
            break
    inputs, targets = torch.cat(kept)[: setting["certified"]], torch.cat(truths)[: setting["certified"]]
    started = time.process_time()
    found = certify(model, inputs, targets, pixels(setting["certified_radius"]))
    seconds = time.process_time() - started
    note = (
        f"{100 * found.share:.1f} % of {len(inputs)} images provably keep their class within {setting['certified_radius']:g} "
        f"(CROWN, {seconds:.0f} s). The paper takes images that all its models get right; here each model has its own."
    )
    return histogram("Certified margins", "smallest lower bound", {"margin": found.lower}, note)
