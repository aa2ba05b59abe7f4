"""How models of the user's own data are scored and drawn."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp

from ....metrics import expected_calibration_error
from ....players import PGD
from ....players.player import Game, Player, Response
from ...data.own.splits import few
from ...report.figures import Figure, reliability
from ...task import Data, Setting, Split


@dataclass(frozen=True)
class Final(Split):
    """The test split: also scored under attack, which would be too slow after every epoch."""


@dataclass(frozen=True)
class Scaled(Split):
    """Targets in units of the training targets' standard deviation, which is `unit`."""

    unit: float = 1.0


def outputs(model: nn.Module, split: Split) -> tuple[Tensor, Tensor]:
    """Predictions and targets of a whole split."""
    seen, right = [], []
    for inputs, targets in split.batches(250):
        found = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        seen.append(getattr(found, "logits", found))
        right.append(targets)
    return torch.cat(seen), torch.cat(right)


def classes(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy, macro F1 and expected calibration error in percent, and the loss; in the end accuracy under attack."""
    logits, targets = outputs(model, split)
    guess, kinds = logits.argmax(-1), logits.shape[-1]
    hits = torch.bincount(targets[guess == targets], minlength=kinds).double()
    both = torch.bincount(targets, minlength=kinds) + torch.bincount(guess, minlength=kinds)
    found = {
        "accuracy": 100 * float((guess == targets).double().mean()),
        "macro F1": 100 * float((2 * hits / both.clamp_min(1))[both > 0].mean()),
        "ece": 100 * expected_calibration_error(logits.softmax(-1), targets),
        "loss": float(nn.functional.cross_entropy(logits, targets)),
    }
    if isinstance(split, Final) and setting["attacked"]:
        found["worst-case accuracy"] = 100 * withstood(model, split, setting)
    return found


def numbers(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Root mean square and mean absolute error in the target's own unit, and the share of variance explained."""
    guess, targets = outputs(model, split)
    unit = split.unit if isinstance(split, Scaled) else 1.0
    wrong = (guess - targets).double()
    return {
        "rmse": unit * float(wrong.square().mean().sqrt()),
        "mae": unit * float(wrong.abs().mean()),
        "r2": 1 - float(wrong.square().mean() / targets.double().var(unbiased=False).clamp_min(1e-12)),
    }


class Kept(Player):
    """A player that remembers what another answers."""

    def __init__(self, player: PGD) -> None:
        self.player = player
        self.seen: list[Tensor] = []

    def respond(self, game: Game) -> Response:
        """The other player's response, remembered."""
        response = self.player.respond(game)
        self.seen = [value.detach() for value in response.values]
        return response


def withstood(model: nn.Module, split: Split, setting: Setting) -> float:
    """The share of `attacked` examples that stay right at the clean point and at the ends of two ascents.

    The examples are of every class in its share: files lie class by class, so the first ones would all be of one.
    Inputs that are numbers are moved themselves, words are moved as vectors; the ball is the same for every method.
    """
    inputs, targets = split.batch(torch.tensor(few(split.targets.tolist(), setting["attacked"], seed=0)))
    words = "at" in setting or isinstance(inputs, tuple) or not inputs.is_floating_point()
    site: Any = sp.Words("embedding") if words else sp.Input()
    radius = setting["attack"] * (1.0 if words else math.sqrt(inputs[0].numel()))
    right = torch.ones(len(targets), dtype=torch.bool)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.enable_grad():
        found = model(*arguments)
        right &= getattr(found, "logits", found).argmax(-1) == targets
        for _ in range(2):
            player = Kept(PGD(sp.L2(radius), steps=20, step_size=radius / 5, start=radius / 2))
            objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, player, None))
            objective.eval()
            objective(inputs, targets)
            moved: Any = sp.perturbed_call(model, {site: player.seen}, *arguments)
            right &= getattr(moved, "logits", moved).argmax(-1) == targets
    return float(right.double().mean())


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """The reliability diagram of a classifier."""
    if not data.extra["classes"]:
        return []
    with torch.no_grad():
        logits, targets = outputs(model, data.test or data.validation)
    return [reliability(logits.softmax(-1), targets)]
