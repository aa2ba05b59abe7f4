"""Figures 3 and 4 of the adversarial dropout paper: how fragile are sub-networks, and which units hold the prediction?"""

import torch
from torch import nn

import sparring as sp

from ....metrics.subnetworks import mean_adversarial_mask, subnetwork_accuracies
from ...report.figures import Figure, heatmap, histogram, reliability
from ...task import Data, Setting

SITE = sp.Recurrent("lstm", keep=1.0)
COUNT = {"tiny": (20, 200), "small": (100, 500), "paper": (500, 1_000)}  # sub-networks, test examples


def adversary(setting: Setting) -> sp.GreedyFlip:
    """The paper's: 3 % of the units and K = 2; more of a small layer, so that every step has a flip."""
    return sp.GreedyFlip(sp.Flips(max(0.03, 3.01 / setting["hidden"])), steps=2)


def probe(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """One row of figure 4: the mean adversarial mask of every unit on 100 test examples."""
    test = data.test or data.validation
    (kept,) = mean_adversarial_mask(model, test.inputs[:100], SITE, adversary(setting))
    note = "share of test examples whose adversary drops the unit; a dark column is a unit that predictions lean on"
    return [heatmap("Adversarial mask by epoch", "unit", "epoch", (1 - kept).float()[None], note)]


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Figure 3, and the reliability diagram."""
    test = data.test or data.validation
    count, examples = COUNT[setting.scale]
    inputs, targets = test.batch(slice(0, examples))
    found = subnetwork_accuracies(model, inputs, targets, SITE, adversary(setting), keep=0.97, count=count)
    series = {"random": (100 * found.random).tolist(), "adversarial": (100 * found.adversarial).tolist()}
    note = (
        f"{count} sub-networks each on {len(inputs)} test examples: a random one is one mask with keep rate .97; an adversarial "
        "one gives every example the mask found for it (K = 2) from a fresh random flip"
    )
    with torch.no_grad():
        probabilities = torch.cat([model(batch).softmax(-1) for batch, _ in test.batches(500)])
    return [
        reliability(probabilities, test.targets),
        histogram("Accuracy of sub-networks", "accuracy in percent", series, note),
    ]
