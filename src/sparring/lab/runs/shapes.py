"""What each file of a run must look like, and what is wrong with one that does not.

A shape is a type, `None`, a tuple of alternatives, `[shape]` for a list, `{str: shape}` for a mapping, or a record
`{"name": shape, "maybe?": shape}`; a record may hold more than its shape names.

>>> fault({"seed": 3, "task": "sst"}, {"seed": int, "task": str})
>>> fault({"seed": "3"}, {"seed": int}), fault({}, {"seed": int}), fault([1, None], [Number])
("entry 'seed' is '3'", "it has no entry 'seed'", "entry '1' is None")
"""

import math
from typing import Any

Number = (int, float)
Figure = (None, int, float)  # what cannot be a number in JSON (nan, inf) is stored as null
Value = (None, bool, int, float, str)

CONFIG: dict[str, Any] = {
    "task": str,
    "method": str,
    "scale": str,
    "seed": int,
    "values": {str: Value},
    "overrides": {str: Value},
    "source?": str,
}
DATA = {"files": {str: str}}
ENVIRONMENT = {"python": str, "packages": {str: str}, "cpu": str, "command": str}
RESULT = {
    "task": str,
    "score": str,
    "better": str,
    "epochs": int,
    "best_epoch": int,
    "test": {str: Figure},
    "validation": {str: Figure},
    "seconds_per_step": Number,
    "passes_per_step": Number,
    "parameters": int,
    "weights?": str,
    "summary?": str,
    "baseline?": str,
}
STATE = {"format": int, "parts": {str: {"file": str, "sha256": str, "values": object}}}
SWEEP = {
    "name": str,
    "task": str,
    "scale": str,
    "method": str,
    "score": str,
    "better": str,
    "seeds": [int],
    "changes?": {str: Value},
    "log": {str: bool},
    "trials": [{"settings": {str: Value}, "value": Number, "test": Figure, "validation": [Number]}],
}
STORY = {
    "chapters": [
        {"task": str, "question": str, "methods": [str], "score": str, "better": str, "header": str, "text": str}
    ]
}
RECORD = {
    "task": str,
    "scale": str,
    "method": str,
    "seed": int,
    "role": str,
    "version": int,
    "values": {str: Value},
    "validation": (None, {str: Figure}),
    "test": (None, {str: Figure}),
    "diagnostics?": {str: Figure},
}

SERIES = {str: [Figure]}
FIGURES: dict[str, Any] = {
    "curves": {"x_label": str, "x": [Figure], "y_label": str, "log": bool, "series": SERIES},
    "histogram": {"x_label": str, "series": SERIES},
    "heatmap": {"x_label": str, "y_label": str, "rows": [[Figure]]},
    "sentences": {"items": [{"words": [str], "weights": [Figure], "label": str}]},
    "pictures": {
        "names": [str],
        "darkest": Number,
        "panels": [{"name": str, "kind": str, "rows": [[Figure]]}],
    },
    "bars": {"y_label": str, "series": SERIES},
    "violins": {"y_label": str, "series": SERIES},
    "reliability": {
        "confidence": [Figure],
        "accuracy": [Figure],
        "count": [Number],
        "ece": Figure,
        "debiased?": [Figure],
    },
}
METRICS = {
    "epoch": int,
    "step": int,
    "loss": Figure,
    "losses": [Figure],
    "diagnostics": {str: Figure},
    "seconds_per_step": Number,
    "passes_per_step": Number,
    "validation": {str: Figure},
    "probe": [object],
}


def fault(value: Any, shape: Any, at: str = "") -> str | None:
    """What of `value` is not as `shape` says, in words; None where all is."""
    here = f"entry {at!r} is {value!r:.60}" if at else f"it holds {value!r:.60}"
    if isinstance(shape, tuple):
        return here if all(fault(value, one) for one in shape) else None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return here
        return first(fault(entry, shape[0], f"{at}/{place}".lstrip("/")) for place, entry in enumerate(value))
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return here
        if str in shape:
            return first(fault(entry, shape[str], f"{at}/{name}".lstrip("/")) for name, entry in value.items())
        for name in shape:
            if name not in value and not name.endswith("?"):
                return f"it has no entry {f'{at}/{name}'.lstrip('/')!r}"
        known = {name.removesuffix("?"): kind for name, kind in shape.items()}
        return first(fault(value[name], known[name], f"{at}/{name}".lstrip("/")) for name in known if name in value)
    if shape is object:
        return None
    if shape is None or isinstance(shape, str):
        return None if value == shape else here
    if isinstance(value, float) and not math.isfinite(value):
        return here
    return None if type(value) is shape else here


def first(faults: Any) -> str | None:
    """The first fault there is."""
    return next((found for found in faults if found), None)


def figures_fault(figures: Any) -> str | None:
    """What is wrong with a list of figures; each kind has a shape of its own."""
    if not isinstance(figures, list):
        return f"it holds {figures!r:.60} instead of figures"
    for place, figure in enumerate(figures):
        kind = figure.get("kind") if isinstance(figure, dict) else None
        if not isinstance(kind, str) or kind not in FIGURES:
            return f"figure {place} is of unknown kind {kind!r:.60}"
        if found := fault(figure, {"title": str, "note": str, **FIGURES[kind]}, str(place)):
            return found
    return None
