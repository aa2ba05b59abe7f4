"""The questions of an audit, as functions from what was measured to a `Check`."""

from math import comb

import torch
from torch import Tensor, nn

from ..robustness import RobustAccuracy
from .report import LIMIT, Check

USUAL, SINGLE, LONG = "PGD on cross-entropy (the usual attack)", "FGSM, one step", "PGD, more steps and restarts"
MARGIN, DLR, DOUBLE = "PGD on the margin", "PGD on the DLR loss", "PGD on cross-entropy in float64"
BLACK_BOX, TWIN, AUTO = "black box, no gradient", "transfer from a rescaled twin", "AutoAttack"

# attack -> name of the check, what it means when the attack breaks clearly more, what it means when it does not
QUESTIONS = {
    SINGLE: ("one step against many", "one step breaks more than many", "many steps break no less than one"),
    MARGIN: ("margin loss", "a loss that cannot saturate breaks more", "the margin loss does no better"),
    DLR: ("DLR loss", "a loss blind to the scale of the logits breaks more", "the DLR loss does no better"),
    DOUBLE: ("float64", "more digits let the same attack break more", "precision does not matter"),
    BLACK_BOX: ("black box", "an attack without gradients breaks more", "an attack without gradients does no better"),
    TWIN: ("rescaled twin", "the same model with smaller logits betrays it", "shrinking the logits opens nothing"),
    AUTO: ("AutoAttack", "it breaks more than a long cross-entropy attack", "it does no better than a long attack"),
}


def beats(other: RobustAccuracy, usual: RobustAccuracy, tolerance: float) -> bool:
    """Breaks clearly more: by more than the tolerance, and not by chance (paired sign test at 1 %).

    Example:
        >>> import torch
        >>> def outcome(right: int) -> RobustAccuracy:
        ...     return RobustAccuracy(torch.ones(50).bool(), torch.arange(50) < right, torch.zeros(50), torch.zeros(50))
        >>> beats(outcome(20), outcome(40), 0.05), beats(outcome(38), outcome(40), 0.05)
        (True, False)
    """
    more = int((usual.survived & ~other.survived).sum())
    fewer = int((other.survived & ~usual.survived).sum())
    trials = more + fewer
    chance = sum(comb(trials, k) for k in range(more, trials + 1)) / 2**trials
    return usual.plain - other.plain > tolerance and chance < 0.01


def output_checks(logits: Tensor, again: Tensor, zero: float, samples: int, tolerance: float) -> list[Check]:
    """What can be seen without attacking.

    Args:
        logits: (B, C) of the clean inputs.
        again: the same from a second pass.
        zero: share of examples whose input gradient is exactly zero.
        samples: passes the audit averages.
        tolerance: share of examples from which on a finding is notable.
    """
    top = logits.topk(2, dim=1).values
    gap = top[:, 0] - top[:, 1]
    limit = -torch.tensor(torch.finfo(logits.dtype).eps / 2).log().item()
    precision = str(logits.dtype).removeprefix("torch.")
    saturated = (gap > limit).double().mean().item()
    if zero > tolerance:
        flat = Check(
            "zero gradients",
            f"{100 * zero:.1f} % of examples",
            "a gradient attack stands still where it starts",
            "notable",
        )
    else:
        flat = Check("zero gradients", f"{100 * zero:.1f} % of examples", "gradients carry a signal", "fine")
    spread = f"median {gap.nanmedian().item():.1f}, {100 * saturated:.0f} % > {limit:.0f}"
    if saturated > tolerance and zero > tolerance:
        wide = Check("logit gap", spread, f"above {limit:.0f} a {precision} softmax rounds to 0 and 1", "notable")
    elif saturated > tolerance:
        wide = Check("logit gap", spread, "large, but the gradients are not zero", "fine")
    else:
        wide = Check("logit gap", spread, "the softmax is not saturated", "fine")
    checks = [flat, wide]
    silent = (~logits.isfinite()).any(1).double().mean().item()
    if silent > 0:
        meaning = (
            "infinite or not a number: look for the fault in the model before its robustness (nan counts as wrong)"
        )
        checks.append(Check("outputs", f"{100 * silent:.1f} % not finite", meaning, "notable"))
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
        meaning = "these look like probabilities: audit the logits before the softmax"
        checks.append(Check("outputs", "positive, sum to 1", meaning, "notable"))
    if samples == 1 and not torch.equal(logits.nan_to_num(), again.nan_to_num()):
        meaning = "the model draws noise: audit it with samples=10 or more"
        checks.append(Check("randomness", "two passes differ", meaning, "notable"))
    return checks


def mode_checks(model: nn.Module) -> list[Check]:
    """Batch norm that still uses batch statistics: the outcome for one example would depend on the others."""
    if not any(m.training and isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return []
    return [Check("mode", "batch norm trains", "examples influence each other: call model.eval() first", "notable")]


def attack_checks(results: dict[str, RobustAccuracy], tolerance: float, sharper: bool = False) -> list[Check]:
    """Every other attack against the usual one (AutoAttack against the long one), example by example.

    Args:
        results: outcome of each attack.
        tolerance: see `audit`.
        sharper: the twin's logits are larger than the model's, so nothing was saturated: where the twin goes further,
            the usual attack was weak, and no gradient was hidden.
    """
    usual, long = results[USUAL], results[LONG]
    checks = []
    for name, (short, bad, good) in QUESTIONS.items():
        if name in results:
            against = long if name == AUTO else usual
            masked = beats(results[name], against, tolerance)
            found = _change(against, results[name])
            if name == TWIN and sharper:
                meaning = "larger logits sharpen the usual attack" if masked else "larger logits open nothing"
                checks.append(Check(short, found, meaning, "notable" if masked else "fine"))
            else:
                checks.append(Check(short, found, bad if masked else good, "masking" if masked else "fine"))
    if DOUBLE not in results:
        checks.append(Check(QUESTIONS[DOUBLE][0], "left out", "the model does not run in float64", "fine"))
    weak = beats(long, usual, tolerance)
    meaning = "the usual attack had not converged" if weak else "the usual attack had converged"
    checks.append(Check("more steps and restarts", _change(usual, long), meaning, "notable" if weak else "fine"))
    return checks


def sweep_checks(
    curve: list[tuple[float, RobustAccuracy, RobustAccuracy]], tolerance: float, moved: bool = True
) -> list[Check]:
    """At larger radii: does cross-entropy keep up with the margin, and does it reach 0 % in the end?

    Args:
        curve: radius, result on cross-entropy, result on the margin; the last radius allows any input.
        tolerance: see `audit`.
        moved: some input, clean or attacked, got another answer than the rest; False: the model seems to be constant.
    """
    behind = [
        (usual.plain - other.plain, radius, usual, other)
        for radius, usual, other in curve
        if beats(other, usual, tolerance)
    ]
    if behind:
        _, radius, usual, other = max(behind, key=lambda item: item[0])
        found = f"{_change(usual, other)} at {radius:.3g}"
        first = Check(
            "larger radii, margin loss", found, "the usual attack falls behind as the radius grows", "masking"
        )
    else:
        first = Check("larger radii, margin loss", "no difference", "both losses agree at every radius", "fine")
    broken = next((radius for radius, usual, _ in curve if usual.plain == 0), None)
    if broken is not None:
        return [first, Check(LIMIT, f"{broken:.3g}", "a large enough radius leaves nothing right", "fine")]
    radius, usual, _ = curve[-1]
    found = f"{100 * usual.plain:.1f} % left at {radius:.3g}"
    if not moved:
        meaning = "the model gave one and the same answer to every input: there is nothing to attack"
        return [first, Check(LIMIT, found, meaning, "notable")]
    if usual.plain > 0.01:
        return [first, Check(LIMIT, found, "with any input allowed the usual attack still fails", "masking")]
    return [first, Check(LIMIT, found, "next to nothing is left at the largest radius", "fine")]


def _change(before: RobustAccuracy, after: RobustAccuracy) -> str:
    return f"{100 * before.plain:.1f} -> {100 * after.plain:.1f} %"
