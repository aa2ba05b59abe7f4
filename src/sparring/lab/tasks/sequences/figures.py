"""Figures 3 and 4 of the adversarial dropout paper: how fragile are sub-networks, and which units hold the prediction?"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp

from ....balls.flips import Flips
from ....players import GreedyFlip
from ....players.player import Game, Response
from ...report.figures import Figure, heatmap, histogram, reliability
from ...task import Data, Setting


@dataclass(frozen=True)
class Recorder(sp.Player):
    """A player that keeps what another player answers."""

    player: GreedyFlip
    seen: list[Tensor] = field(default_factory=list)

    kinds = frozenset({"mask"})

    def respond(self, game: Game) -> Response:
        """The other player's response, remembered."""
        response = self.player.respond(game)
        self.seen.extend(value.detach() for value in response.values)
        return response


def adversarial_masks(model: nn.Module, inputs: Tensor, fraction: float) -> Tensor:
    """The worst mask of each example's recurrent connection within `fraction` flips, (B, H), rescaled to mean one."""
    recorder = Recorder(GreedyFlip(Flips(fraction)))
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Recurrent("lstm", keep=1.0), recorder, sp.js))
    objective.eval()
    with torch.enable_grad():
        objective(inputs)
    return recorder.seen[0]


def masked_accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, mask: Tensor) -> float:
    """Accuracy in percent of one sub-network."""
    with torch.no_grad():
        site = sp.Recurrent("lstm")
        outputs: Any = sp.perturbed_call(model, {site: mask.expand(len(inputs), -1)}, inputs)
    return 100 * float((outputs.argmax(-1) == targets).float().mean())


def share(setting: Setting) -> float:
    """The paper's 3 % of the units, or what leaves two flips."""
    return max(0.03, 2.01 / setting["hidden"])


def probe(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """One row of figure 4: the mean adversarial mask of every unit on 100 validation examples."""
    masks = adversarial_masks(model, data.validation.inputs[:100], share(setting))
    dropped = (masks == 0).float().mean(0)
    note = "share of examples whose adversary drops the unit; a dark column is a unit that predictions lean on"
    return [heatmap("Adversarial mask by epoch", "unit", "epoch", dropped[None], note)]


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Figure 3, and the reliability diagram."""
    test = data.test or data.validation
    count = {"tiny": 20, "small": 100}.get(setting.scale, 500)
    inputs, targets = test.batch(slice(0, max(100, count)))
    worst = adversarial_masks(model, inputs[:count], share(setting))
    flips = (worst == 0).sum(-1)
    order = torch.rand_like(worst).argsort(-1).argsort(-1)
    kept = (order >= flips[:, None]).float()  # random masks with as many dropped units as the adversary's
    random = kept / kept.mean(-1, keepdim=True)
    series = {
        "random": [masked_accuracy(model, inputs, targets, mask[None]) for mask in random],
        "adversarial": [masked_accuracy(model, inputs, targets, mask[None]) for mask in worst],
    }
    note = (
        f"{len(worst)} sub-networks each, the adversary's found for one example and tried on {len(inputs)}; equal flips"
    )
    with torch.no_grad():
        probabilities = torch.cat([model(batch).softmax(-1) for batch, _ in test.batches(500)])
    return [
        reliability(probabilities, test.targets),
        histogram("Accuracy of sub-networks", "accuracy in percent", series, note),
    ]
