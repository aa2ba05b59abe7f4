"""What a fine-tuned model says about a split, and GLUE's figures of it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ....metrics import expected_calibration_error, fit_temperature
from ...report.figures import Figure, reliability
from ...task import Data, Setting, Split


@dataclass(frozen=True)
class Parts(Split):
    """A split made of several sets, such as MNLI's matched and mismatched pairs: `sizes` of each, in order.

    The last `beside` examples have figures of their own and count in no other.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    beside: int = 0

    @property
    def deciding(self) -> int:
        """How many of the examples count."""
        return len(self) - self.beside


def logits(outputs: Any) -> Tensor:
    """What the model says, (B, outputs)."""
    return outputs if isinstance(outputs, Tensor) else outputs.logits


def answers(model: nn.Module, split: Split, size: int = 64) -> Tensor:
    """The outputs for every example, (N, outputs). Examples of like length share a batch: less padding, same answers."""
    order = torch.arange(len(split)) if split.lengths is None else split.lengths.argsort(stable=True)
    found = [logits(model(**split.batch(index)[0])) for index in order.split(size)]
    return torch.cat(found)[order.argsort()]


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """GLUE's figures, in percent: Pearson and Spearman for scores; accuracy, Matthews, F1 and ECE for classes."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    outputs, targets = answers(model, split).cpu(), split.targets.cpu()
    if outputs.shape[1] == 1:
        scores = outputs[:, 0].tolist()
        flat = len(set(scores)) < 2  # a constant has no correlation
        both = (0.0, 0.0) if flat else (pearsonr(scores, targets.tolist())[0], spearmanr(scores, targets.tolist())[0])
        loss = float(nn.functional.mse_loss(outputs[:, 0], targets))
        return {"pearson": 100 * float(both[0]), "spearman": 100 * float(both[1]), "loss": loss}
    right = (outputs.argmax(-1) == targets).float()
    if isinstance(split, Parts):
        outputs, targets = outputs[: split.deciding], targets[: split.deciding]
    predicted = outputs.argmax(-1)
    figures = {"accuracy": 100 * float(right[: len(targets)].mean())}
    if outputs.shape[1] == 2:
        figures["f1"] = 100 * float(f1_score(targets, predicted, zero_division=0))
        figures["matthews"] = 100 * float(matthews_corrcoef(targets, predicted))
    if isinstance(split, Parts) and len(split.sizes) > 1:
        for name, part in zip(split.sizes, right.split(list(split.sizes.values()))):
            figures[f"accuracy {name}"] = 100 * float(part.mean())
    figures["ece"] = 100 * expected_calibration_error(outputs.softmax(-1), targets)
    return {**figures, "loss": float(nn.functional.cross_entropy(outputs, targets))}


def figures(model: nn.Module, data: Data, setting: Setting) -> list[Figure]:
    """Reliability before and after temperature scaling (the paper's figure 2), for classes."""
    if data.extra["outputs"] == 1:
        return []
    test = data.test or data.validation
    with torch.no_grad():
        said, held = answers(model, test).cpu(), answers(model, data.validation).cpu()
    temperature, targets = fit_temperature(held, data.validation.targets.cpu()), test.targets.cpu()
    if isinstance(test, Parts):
        said, targets = said[: test.deciding], targets[: test.deciding]
    note = f"temperature {temperature:.3g}, fitted on validation"
    return [
        reliability(said.softmax(-1), targets),
        reliability((said / temperature).softmax(-1), targets, title="Reliability at a fitted temperature", note=note),
    ]
