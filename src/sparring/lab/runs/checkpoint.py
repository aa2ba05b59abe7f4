"""Files that are either the old ones or the new ones, never half of each: atomic writes, locks, exact checkpoints.

A checkpoint is `state.json` (plain JSON) naming `*.safetensors` files by their SHA-256. Nothing is unpickled. The
tensor files appear first, under names no older state uses; replacing `state.json` is the one instant at which the new
state counts; files it does not name are removed afterwards. So a kill at any moment, or a full disk, leaves a good one.

>>> import tempfile, torch
>>> folder = Path(tempfile.mkdtemp())
>>> save(folder, {"state": {"weight": torch.ones(2), "epoch": 3, "betas": (0.9, float("inf")), 0: None}})
>>> load(folder)
{'state': {'weight': tensor([1., 1.]), 'epoch': 3, 'betas': (0.9, inf), 0: None}}
"""

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import RunError

FORMAT = 1


def write_atomic(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one instant: a temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; the last good state is untouched, make room and run again"
        ) from error


def plain(value: Any) -> Any:
    """`value` with None for every number that JSON cannot hold (nan, inf).

    >>> plain({"correlation": float("nan"), "error": 0.5})
    {'correlation': None, 'error': 0.5}
    """
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of readable JSON."""
    write_atomic(path, (json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON at `path`, or a `RunError` that says what is wrong with it."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is not valid JSON ({error}); delete the run folder to start again") from error


def read_record(path: Path, *names: str) -> dict[str, Any]:
    """The JSON object at `path`; a `RunError` where it lacks one of `names`."""
    found = read_json(path)
    for name in names:
        if not isinstance(found, dict) or name not in found:
            raise RunError(f"{path} is damaged (it has no entry {name!r}); delete the run folder to start again")
    return dict(found)


@contextmanager
def locked(folder: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a run folder against every other process; the lock dies with the process, however it dies.

    Args:
        folder: made where it does not exist.
        wait: called again and again while another process holds the lock; without it that is an error.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a")  # noqa: SIM115 - must outlive this statement
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if wait is None:
                    raise RunError(
                        f"another process is writing {folder}; wait for it or choose another --out"
                    ) from error
                wait()
        for leftover in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        yield


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
        if not (folder / file).exists():
            write_atomic(folder / file, content)
        index[part] = {"file": file, "sha256": digest, "values": values}
    write_json(folder / "state.json", {"format": FORMAT, "parts": index})
    current = {entry["file"] for entry in index.values()}
    for old in folder.glob("*.safetensors"):
        if old.name not in current:
            old.unlink(missing_ok=True)


def load(folder: Path) -> dict[str, Any] | None:
    """The last good state of `folder`, or None where there is none."""
    if not (folder / "state.json").exists():
        return None
    index = read_json(folder / "state.json")
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise RunError(f"{folder / 'state.json'} is not a checkpoint this version can read; use a new --out")
    parts = {}
    for part, entry in index.get("parts", {}).items():
        try:
            path = folder / entry["file"]
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise RunError(
                    f"{path} is damaged (its SHA-256 is not the recorded one); delete {folder} to start again"
                )
            parts[part] = unflatten(entry["values"], safetensors.torch.load(content))
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}; delete {folder} to start again") from error
        except SafetensorError as error:
            raise RunError(f"{path} is damaged ({error}); delete {folder} to start again") from error
        except (KeyError, TypeError) as error:
            raise RunError(f"{folder / 'state.json'} is damaged ({error}); delete {folder} to start again") from error
    return parts
