"""What an ensemble is worth: accuracy, diversity, and accuracy under the attacks of Tables 4 to 6 with their audit."""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .... import attacks
from ....ensembles import members_of
from ....metrics.audit.audit import audit
from ....metrics.calibration import expected_calibration_error
from ....metrics.diversity import ambiguity, gradient_diversity
from ....metrics.robustness import robust_accuracy
from ...task import Setting, Split
from .data import Attacked
from .methods import pixels

# Table 5 has PGD at .02 and .04 from a surrogate of another kind, at .01 and .02 from one like the target.
MULTIPLES = {"I": (1, 2), "II": (0.5, 1)}


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Accuracy in percent and ambiguity; on the test split also accuracy under attack, L_d and L_s.

    Elsewhere the first `watched` images are attacked once, for those who choose settings by it.
    """
    outputs = [model(inputs) for inputs, _ in split.batches(500)]
    logits, members = torch.cat([o.logits for o in outputs]), torch.cat([members_of(o) for o in outputs])
    found = {
        "accuracy": 100 * float((logits.argmax(-1) == split.targets).float().mean()),
        "ece": 100 * expected_calibration_error(logits.softmax(-1), split.targets),
        "ambiguity": ambiguity(members, split.targets),
    }
    if isinstance(split, Attacked):
        return found | under_attack(model, split, setting)
    if setting["watched"]:
        inputs, targets = some(split, setting["watched"])
        attack = attacks.PGD(pixels(setting["radius"]), steps=setting["margin_steps"], loss="margin")
        found["margin"] = 100 * robust_accuracy(bare(model), attack, inputs, targets).plain
    return found


def bare(model: nn.Module) -> nn.Module:
    """The same model without hooks: some attacks copy it, and the training loop's hook would bring the whole run along.

    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.register_forward_pre_hook(lambda module, args: None)
    >>> len(bare(layer)._forward_pre_hooks), bare(layer).weight is layer.weight
    (0, True)
    """
    stripped = copy.copy(model)
    stripped._forward_pre_hooks, stripped._forward_hooks = OrderedDict(), OrderedDict()
    return stripped


def some(split: Split, count: int) -> tuple[Tensor, Tensor]:
    """The first examples of a split."""
    inputs, targets = split.batch(slice(0, count))
    return inputs, targets


def under_attack(model: nn.Module, split: Attacked, setting: Setting) -> dict[str, float]:
    """Plain robust accuracy in percent under each attack, with what tells whether the attack can be believed.

    `clean` is the accuracy on the attacked images, so that a figure divided by it is the conditional accuracy that the
    predecessor's code reports. `x2` columns have twice the radius.
    """
    model, found = bare(model), {}
    if setting["attacked"]:
        inputs, targets = some(split, setting["attacked"])
        for times in (1, 2):
            for name, attack in white_box(setting, times).items():
                result = robust_accuracy(model, attack, inputs, targets)
                found[name], found["clean"] = 100 * result.plain, 100 * result.clean
        gradients = gradient_diversity(model, inputs, targets)
        found["vanished"] = 100 * gradients.vanished
        for name, values in gradients.quantiles().items():
            found |= {f"{name}_{level}": value for level, value in zip((25, 50, 75), values)}
    table: list[tuple[int, Mapping[str, Any]]] = [
        (setting["autoattack"], {"autoattack": attacks.AutoAttack(pixels(setting["radius"]))}),
        (setting["saliency"], saliency(setting)),
        (setting["black_box"], black_box(split.helpers, setting)),
    ]
    for count, chosen in table:
        if count:
            inputs, targets = some(split, count)
            for name, attack in chosen.items():
                found[name] = 100 * robust_accuracy(model, attack, inputs, targets).plain
    if setting["audited"]:
        inputs, targets = some(split, setting["audited"])
        verdict = audit(model, inputs, targets, pixels(setting["radius"]), autoattack=False)
        found |= {"worst-case accuracy": 100 * verdict.lowest, "masked": 100.0 * (verdict.verdict == "masked")}
    return found


def white_box(setting: Setting, times: int = 1) -> dict[str, Any]:
    """Attacks that see the gradient, at the radius or a multiple of it."""
    ball, more = pixels(times * setting["radius"]), "" if times == 1 else f" x{times}"
    chosen = {
        "fgsm": attacks.FGSM(ball),
        "bim": attacks.BIM(ball),
        "pgd": attacks.PGD(ball),
        "paper_pgd": attacks.paper_pgd(ball),
        "margin": attacks.PGD(ball, steps=setting["margin_steps"], loss="margin", restarts=2),
    }
    return {name + more: attack for name, attack in chosen.items()}


def saliency(setting: Setting) -> dict[str, Any]:
    """JSMA with 5 and 10 % of the pixels, and Carlini and Wagner with constant .1: the lower part of Table 4."""
    return {
        "jsma .05": attacks.JSMA(gamma=0.05),
        "jsma .10": attacks.JSMA(gamma=0.10),
        "cw": attacks.CarliniWagner(constant=0.1, searches=setting["searches"], steps=setting["search_steps"]),
    }


def black_box(surrogates: Mapping[str, nn.Module], setting: Setting) -> dict[str, Any]:
    """Table 5: the same attacks, crafted on models of the attacker's own, at the table's multiples of the radius."""
    chosen = {}
    for kind, surrogate in surrogates.items():
        other = bare(surrogate)
        crafted: dict[str, Any] = {
            "pgd" if times == 1 else f"pgd x{times:g}": attacks.PGD(pixels(times * setting["radius"]))
            for times in MULTIPLES[kind]
        }
        crafted |= {f"jsma .{share}": attacks.JSMA(gamma=int(share) / 100) for share in ("05", "10")}
        for name, attack in crafted.items():
            chosen[f"type {kind} {name}"] = attacks.Transfer(attack, other, kind)  # type: ignore[arg-type]
    return chosen
