"""The figures a task can hand to the report: plain data, made here, stored as JSON, drawn by `svg`.

>>> figure = curves("Accuracy under PGD", "radius", [0.0, 0.1], "accuracy", {"plain": [0.9, 0.2]}, note="not masked")
>>> figure["kind"], figure["series"]
('curves', {'plain': [0.9, 0.2]})
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ...metrics import calibration

Figure = dict[str, Any]
Numbers = Sequence[float] | Tensor


def floats(values: Any) -> Any:
    """Tensors and nested sequences as lists of rounded floats, so that stored figures stay small."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().tolist()
    if isinstance(values, (list, tuple)):
        return [floats(value) for value in values]
    return float(f"{float(values):.5g}")


def curves(
    title: str, x_label: str, x: Numbers, y_label: str, series: Mapping[str, Numbers], note: str = "", log: bool = False
) -> Figure:
    """Lines over a shared x axis: robustness curves (put the audit's verdict in `note`), metric against radius."""
    drawn = {name: floats(values) for name, values in series.items()}
    axes = {"x_label": x_label, "x": floats(x), "y_label": y_label, "log": log}
    return {"kind": "curves", "title": title, **axes, "series": drawn, "note": note}


def histogram(title: str, x_label: str, series: Mapping[str, Numbers], note: str = "") -> Figure:
    """Overlaid histograms, for example the accuracies of random and of adversarial sub-networks."""
    return {
        "kind": "histogram",
        "title": title,
        "x_label": x_label,
        "series": {name: floats(values) for name, values in series.items()},
        "note": note,
    }


def heatmap(title: str, x_label: str, y_label: str, rows: Sequence[Numbers] | Tensor, note: str = "") -> Figure:
    """A matrix as colours. From `Task.probe`, figures of the same title are stacked: one row per epoch."""
    matrix = [list(row) for row in floats(rows)]
    return {"kind": "heatmap", "title": title, "x_label": x_label, "y_label": y_label, "rows": matrix, "note": note}


def sentences(title: str, items: Sequence[Mapping[str, Any]], note: str = "") -> Figure:
    """Words shaded by attention: items with `words`, `weights` and optionally `label`."""
    shown = [
        {"words": list(item["words"]), "weights": floats(item["weights"]), "label": str(item.get("label", ""))}
        for item in items
    ]
    return {"kind": "sentences", "title": title, "items": shown, "note": note}


def pictures(title: str, panels: Mapping[str, Tensor], names: Sequence[str], darkest: float, note: str = "") -> Figure:
    """Maps of an image beside each other, pixel by pixel.

    Args:
        title: what is shown.
        panels: bytes (3, H, W) are a photograph; whole numbers (H, W) are classes, -1 where there is none; floats (H, W)
            are shades.
        names: of the classes.
        darkest: the value of the darkest shade; white is 0.
        note: a sentence below.
    """
    made = []
    for name, values in panels.items():
        values = values.detach().cpu()
        kind = "classes"
        if values.dim() == 3:
            kind, (red, green, blue) = "photograph", values.int()
            values = red << 16 | green << 8 | blue
        rows = floats(values) if values.is_floating_point() else values.tolist()
        made.append({"name": name, "kind": "shades" if values.is_floating_point() else kind, "rows": rows})
    return {
        "kind": "pictures",
        "title": title,
        "panels": made,
        "names": list(names),
        "darkest": float(darkest),
        "note": note,
    }


def bars(title: str, y_label: str, series: Mapping[str, Numbers], note: str = "") -> Figure:
    """One bar for each unit and series, for example the learned keep rates of every layer."""
    return {
        "kind": "bars",
        "title": title,
        "y_label": y_label,
        "series": {name: floats(values) for name, values in series.items()},
        "note": note,
    }


def violins(title: str, y_label: str, series: Mapping[str, Numbers], note: str = "") -> Figure:
    """The distribution of a few numbers each; those of all methods stand side by side."""
    return {**bars(title, y_label, series, note), "kind": "violins"}


def reliability(
    probabilities: Tensor, targets: Tensor, bins: int = 10, title: str = "Reliability", note: str = ""
) -> Figure:
    """Confidence against accuracy in equal-width bins, with the expected calibration error and its bootstrap interval.

    >>> import torch
    >>> figure = reliability(torch.tensor([[0.85, 0.15], [0.35, 0.65]]), torch.tensor([0, 0]))
    >>> figure["ece"]
    0.4
    """
    probabilities = probabilities.detach().double()
    measured = calibration.reliability(probabilities, targets, bins)
    error = partial(calibration.expected_calibration_error, bins=bins, debiased=True)
    interval = calibration.bootstrap(error, probabilities, targets, samples=200)
    return {
        "kind": "reliability",
        "title": title,
        "confidence": floats(measured.confidence.nan_to_num(0.0)),
        "accuracy": floats(measured.accuracy.nan_to_num(0.0)),
        "count": measured.counts.tolist(),
        "ece": floats(measured.ece),
        "debiased": floats(interval),
        "note": note,
    }
