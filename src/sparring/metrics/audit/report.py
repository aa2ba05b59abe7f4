"""What an audit says: its checks, its figures, its verdict, as text, HTML or plain data."""

from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from ...balls import Ball
from ..robustness import RobustAccuracy

State = Literal["fine", "notable", "masking"]
Verdict = Literal["masked", "attack too weak", "suspicious", "no sign of masking"]
LIMIT = "radius that breaks everything"
MARKS: dict[State, str] = {"fine": "ok", "notable": "!", "masking": "MASKING"}


@dataclass(frozen=True)
class Check:
    """One question the audit asked.

    Example:
        >>> Check("zero gradients", "0.0 %", "gradients carry a signal", "fine").row()
        'zero gradients                  0.0 %                      ok       gradients carry a signal'
    """

    name: str
    found: str
    meaning: str
    state: State

    def row(self) -> str:
        """One line of the table."""
        return f"{self.name:<31} {self.found:<26} {MARKS[self.state]:<8} {self.meaning}"


@dataclass(frozen=True)
class Audit:
    """The outcome of `audit`: print it, or read its parts.

    Example:
        >>> import sparring as sp, torch
        >>> from sparring.metrics import audit
        >>> _ = torch.manual_seed(0)
        >>> net, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.zeros(8).long()
        >>> result = audit(net, x, y, sp.Linf(0.1, box=(0, 1)), autoattack=False)
        >>> result.verdict
        'no sign of masking'
        >>> result.lowest <= result.usual <= result.clean
        True
    """

    ball: Ball
    clean: float
    """Accuracy without attack."""
    usual: float
    """Accuracy under the usual attack, PGD on cross-entropy: the figure a paper would print."""
    lowest: float
    """Share of examples that no attack of the audit broke: the figure to print."""
    attacks: dict[str, RobustAccuracy]
    checks: tuple[Check, ...]
    verdict: Verdict
    summary: str

    def __str__(self) -> str:
        lines = [
            f"Audit for gradient masking, {self.ball}: {self.verdict.upper()}",
            "",
            self.summary,
            "",
        ]
        lines += [f"{'attack':<44} right after it", f"{'none':<44} {100 * self.clean:5.1f} %"]
        lines += [f"{name:<44} {100 * result.plain:5.1f} %" for name, result in self.attacks.items()]
        lines += [f"{'all of them, worst case':<44} {100 * self.lowest:5.1f} %", ""]
        return "\n".join(lines + [check.row() for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, ready for JSON."""
        return {
            "ball": str(self.ball),
            "radius": self.ball.radius,
            "clean": self.clean,
            "usual": self.usual,
            "lowest": self.lowest,
            "verdict": self.verdict,
            "summary": self.summary,
            "attacks": {name: result.to_dict() for name, result in self.attacks.items()},
            "checks": [vars(check) for check in self.checks],
        }

    def to_html(self) -> str:
        """A fragment for a report or a notebook."""
        rows = [("none", self.clean), *((name, result.plain) for name, result in self.attacks.items())]
        rows.append(("all of them, worst case", self.lowest))
        figures = "".join(f"<tr><td>{escape(name)}</td><td>{100 * share:.1f} %</td></tr>" for name, share in rows)
        checks = "".join(
            f'<tr class="{c.state}"><td>{escape(c.name)}</td><td>{escape(c.found)}</td><td>{escape(MARKS[c.state])}</td>'
            f"<td>{escape(c.meaning)}</td></tr>"
            for c in self.checks
        )
        return (
            f'<section class="audit"><h3>Audit for gradient masking: {escape(self.verdict)}</h3>'
            f"<p>{escape(self.summary)}</p>"
            f"<table><thead><tr><th>attack, {escape(str(self.ball))}</th><th>right after it</th></tr></thead>"
            f"<tbody>{figures}</tbody></table>"
            f"<table><thead><tr><th>check</th><th>found</th><th></th><th>meaning</th></tr></thead>"
            f"<tbody>{checks}</tbody></table></section>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def conclude(checks: list[Check], clean: float, usual: float, lowest: float, strengthened: bool) -> tuple[Verdict, str]:
    """The verdict and a paragraph that gives it in words.

    Args:
        checks: the answers.
        clean: accuracy without attack.
        usual: accuracy under the usual attack.
        lowest: share of examples nothing broke.
        strengthened: the usual attack itself, with more steps and restarts or on sharper logits, went clearly further.
    """
    masking = [check for check in checks if check.state == "masking"]
    notable = [check for check in checks if check.state == "notable"]
    figures = (
        f"Without attack {100 * clean:.1f} % are right, after the usual attack (PGD on cross-entropy) {100 * usual:.1f} %, "
        f"after the strongest combination {100 * lowest:.1f} %."
    )
    if masking:
        reasons = "; ".join(f"{check.name}: {check.meaning}" for check in masking)
        beaten = any(check.name != LIMIT for check in masking)
        how = (
            "attacks that do not depend on it go further"
            if beaten
            else "the usual attack fails even where any input is allowed"
        )
        return "masked", (
            f"The gradient is hidden, not harmless: {how}. {figures} Do not quote the usual figure. Evidence: {reasons}."
        )
    if strengthened:
        return "attack too weak", (
            f"The usual attack is weak here: more steps, restarts or sharper logits take it clearly further. {figures} "
            f"Nothing points to hidden gradients, but quote only the last figure."
        )
    if notable:
        reasons = "; ".join(f"{check.name}: {check.meaning}" for check in notable)
        return "suspicious", (
            f"No attack went clearly further than the usual one, but something is unusual. {figures} Seen: {reasons}."
        )
    return "no sign of masking", (
        f"Attacks that avoid the gradient, the loss or the precision of the usual attack do no better than it does. {figures} "
        f"This is an empirical bound: a new attack may go further, a certificate cannot be beaten."
    )
