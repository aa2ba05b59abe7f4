"""Arguments as typed, turned into what they mean."""

import os
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..task import Task
from ..training.devices import DEVICE

MAX_SEED = 2**32 - 1  # numpy's limit


def parse_value(text: str) -> Any:
    """A setting as typed.

    >>> [parse_value(text) for text in ("3", "1e-3", "true", "none", "kl")]
    [3, 0.001, True, None, 'kl']
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse_sets(pairs: list[str] | None) -> dict[str, Any]:
    """`["lr=0.1"]` as a dictionary.

    >>> parse_sets(["lr=0.1", "epochs=3"])
    {'lr': 0.1, 'epochs': 3}
    """
    changes = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise LabError(f"--set {pair!r} does not fit; write --set name=value")
        changes[name.strip()] = parse_value(value.strip())
    return changes


def parse_seeds(text: str) -> list[int]:
    """`3` as [0, 1, 2]; `0,7` as [0, 7].

    >>> parse_seeds("3"), parse_seeds("5,7")
    ([0, 1, 2], [5, 7])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    seeds = list(range(numbers[0])) if len(numbers) == 1 and "," not in text else numbers
    if not seeds or min(seeds) < 0 or max(seeds) > MAX_SEED or len(set(seeds)) < len(seeds):
        raise LabError(f"--seeds {text!r} does not fit; a number such as 3 or a list such as 0,1,2 would")
    return seeds


def parse_methods(text: str | None, task: Task) -> list[str]:
    """`plain,salt` as names that exist; all of the task's when nothing is given. The baseline always comes first."""
    if text is None:
        names = [method.name for method in task.methods]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise LabError(f"--methods {text!r} names no method; leave it out for all, or write --methods plain,...")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise LabError(f"--methods {text!r} names {twice} twice; name each method once")
    for name in names:
        task.method(name)
    return list(dict.fromkeys([task.baseline, *names]))


def data_folder(given: Path | None) -> Path | None:
    """`--data`, else SPARRING_DATA, else None."""
    chosen = given or (Path(os.environ["SPARRING_DATA"]) if os.environ.get("SPARRING_DATA") else None)
    if given is not None and not given.is_dir():
        raise LabError(f"--data {given} is not a folder")
    return chosen


def choose_device(text: str) -> None:
    """Make `--device` the device of this process and of the runs it starts; refused where there is none of the kind.

    >>> choose_device("gpu")
    Traceback (most recent call last):
    ...
    sparring.lab.errors.LabError: --device 'gpu' is not known to torch; auto and cpu are
    """
    if text == "auto":
        return
    import torch

    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if here else 0
    known = ["auto", "cpu", *([here.type] if here else []), *(f"{here.type}:{k}" for k in range(count) if here)]
    try:
        device = torch.device(text)
    except RuntimeError:
        raise LabError(f"--device {text!r} is not known to torch; {' and '.join(known)} are") from None
    if str(device) not in known:
        raise LabError(f"--device {text} is not here; {' and '.join(known)} are")
    os.environ[DEVICE] = str(device)
