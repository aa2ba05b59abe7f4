"""Exact checkpoints: a state is either the old one or the new one, and the one before it is kept.

`state.json` (plain JSON, sealed) names `*.safetensors` files by their SHA-256; nothing is unpickled. The tensor files
appear first, under names no older state uses. Then the present state becomes `previous.json` and the new one
`state.json`; files that neither names are removed. A kill at any moment, or a full disk, leaves a good state, and so
does damage to the newest one.

>>> import tempfile, torch
>>> folder = Path(tempfile.mkdtemp())
>>> save(folder, {"state": {"weight": torch.ones(2), "epoch": 3, "betas": (0.9, float("inf")), 0: None}})
>>> load(folder)
{'state': {'weight': tensor([1., 1.]), 'epoch': 3, 'betas': (0.9, inf), 0: None}}
"""

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import RunError
from .files import AGAIN, Damaged, cannot_write, log, read_json, sync_folder, write_atomic, write_json
from .shapes import STATE

FORMAT = 1
NEWEST, OLDER = "state.json", "previous.json"


def flatten(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A tree of dicts, lists, tuples, numbers and tensors as JSON; the tensors move into `tensors`."""
    if isinstance(tree, Tensor):
        tensors[name] = tree.detach().cpu().contiguous().clone()  # a clone: safetensors refuses shared memory
        return {"$tensor": name}
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: flatten(value, f"{name}/{key}", tensors) for key, value in tree.items()}
        return {"$dict": [[flatten(k, name, tensors), flatten(v, f"{name}/{k}", tensors)] for k, v in tree.items()]}
    if isinstance(tree, (list, tuple)):
        items = [flatten(value, f"{name}/{place}", tensors) for place, value in enumerate(tree)]
        return items if isinstance(tree, list) else {"$tuple": items}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"$float": repr(tree)}
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    raise TypeError(f"{name} is a {type(tree).__name__}, which a checkpoint cannot hold; make it a number or a tensor")


def unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(tree, list):
        return [unflatten(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$tensor": name}:
            return tensors[name]
        case {"$dict": items}:
            return {unflatten(key, tensors): unflatten(value, tensors) for key, value in items}
        case {"$tuple": items}:
            return tuple(unflatten(value, tensors) for value in items)
        case {"$float": text}:
            return float(text)
    return {key: unflatten(value, tensors) for key, value in tree.items()}


def save(folder: Path, parts: Mapping[str, Any]) -> None:
    """Make `parts` the state of `folder`. A part whose tensors did not change since last time is not written again."""
    index: dict[str, Any] = {}
    for part, tree in parts.items():
        tensors: dict[str, Tensor] = {}
        values = flatten(tree, part, tensors)
        content = safetensors.torch.save(tensors)
        digest = hashlib.sha256(content).hexdigest()
        file = f"{part}-{digest[:16]}.safetensors"
        if not (folder / file).exists() or (folder / file).stat().st_size != len(content):
            write_atomic(folder / file, content)
        index[part] = {"file": file, "sha256": digest, "values": values}
    newest, older = folder / NEWEST, folder / OLDER
    try:
        if newest.exists():
            os.replace(newest, older)
        write_json(newest, {"format": FORMAT, "parts": index})
        clear(folder)
    except OSError as error:
        raise cannot_write(newest, error) from error


def keep_only(folder: Path, part: str) -> None:
    """Make one part of the present state the whole state, and forget the state before it."""
    write_json(folder / NEWEST, {"format": FORMAT, "parts": {part: index_of(folder / NEWEST)[part]}})
    try:
        (folder / OLDER).unlink(missing_ok=True)
        clear(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error


def resumable(folder: Path) -> bool:
    """Whether there is a state to go on from, and not only weights."""
    for path in (folder / NEWEST, folder / OLDER):
        try:
            if path.exists() and "state" in index_of(path):
                return True
        except Damaged:
            continue
    return False


def forget_weights(folder: Path) -> None:
    """Remove a state that nothing can go on from: weights without the rest, or damaged with none before it."""
    newest = folder / NEWEST
    try:
        useful = "state" in index_of(newest)
    except RunError:
        useful = (folder / OLDER).exists()
    if not useful:
        newest.unlink(missing_ok=True)
        clear(folder)  # damaged weights too: the next save takes a file of the right name for a good one


def clear(folder: Path) -> None:
    """Remove the tensor files that no state names; none while a state cannot be read."""
    named: set[str] = set()
    for path in (folder / NEWEST, folder / OLDER):
        if path.exists():
            try:
                named |= {entry["file"] for entry in index_of(path).values()}
            except Damaged:
                return
    for file in folder.glob("*.safetensors"):
        if file.name not in named:
            file.unlink(missing_ok=True)
    sync_folder(folder)


def index_of(path: Path) -> dict[str, Any]:
    """The parts a state file names: `file`, `sha256` and `values` of each."""
    found = read_json(path, STATE)
    if found["format"] != FORMAT:
        raise RunError(f"{path} is not a checkpoint this version can read; use a new --out")
    for entry in found["parts"].values():
        if Path(entry["file"]).name != entry["file"] or not entry["file"].endswith(".safetensors"):
            raise Damaged(f"{path} is damaged (it names {entry['file']!r:.60}); {AGAIN}")
    return dict(found["parts"])


def read(path: Path) -> dict[str, Any]:
    """The state in one file; `Damaged` where any of it is not what was saved."""
    parts = {}
    for part, entry in index_of(path).items():
        file = path.parent / entry["file"]
        try:
            content = file.read_bytes()
        except FileNotFoundError as error:
            raise Damaged(f"{file} is gone; {AGAIN}") from error
        except OSError as error:
            raise RunError(f"cannot read {file}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise Damaged(f"{file} is damaged (its SHA-256 is not the recorded one); {AGAIN}")
        try:
            parts[part] = unflatten(entry["values"], safetensors.torch.load(content))
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Damaged(f"{path} is damaged ({error}); {AGAIN}") from error
    return parts


def load(folder: Path, mend: bool = False) -> dict[str, Any] | None:
    """The last good state of `folder`, or None where there is none; a damaged newest one gives way to the older.

    Args:
        folder: where.
        mend: remove a damaged newest state once the older one is found good, so that it cannot push that one out.
    """
    wrong: Damaged | None = None
    for path in (folder / NEWEST, folder / OLDER):
        if path.exists():
            try:
                found = read(path)
            except Damaged as error:
                wrong = wrong or error
                continue
            if wrong:
                log.warning("%s; the checkpoint before it is used", str(wrong).removesuffix(f"; {AGAIN}"))
                if mend:
                    (folder / NEWEST).unlink(missing_ok=True)
                    clear(folder)  # the next save takes a file of the right name for a good one
            return found
    if wrong:
        raise wrong
    return None
