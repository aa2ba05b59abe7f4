"""One run = one folder: what was asked for, what happened, and the state to go on from.

```
OUT/TASK/SCALE/METHOD/seed-0/
  config.json       what decides the result          environment.json  versions, machine, command
  files.json        SHA-256 of the data files read   metrics.jsonl     one line per epoch
  state.json        the checkpoint, with *.safetensors; previous.json the one before it
  figures.json      data of the report's figures     result.json       the end: test figures, costs
  probe-TASK.json   figures of `evaluate --probe`
  data.json         where the user's own examples come from, and which rows are in which split
```

`result.json` is written last, and says which weights it is about: where it is, everything else is.

>>> from sparring.lab.registry import task
>>> folder_of(Path("runs"), task("sequential-digits").setting("plain", overrides={"epochs": 1})).as_posix()
'runs/sequential-digits/tiny/plain@epochs=1/seed-0'
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.files import folder_of as folder_of_data
from ..data.fingerprint import fingerprint
from ..errors import RunError, first_line
from ..task import Setting
from ..training.train import Session
from . import checkpoint, environment
from .checkpoint import index_of
from .files import AGAIN, Damaged, cannot_write, log, opened, read_json, sealed, write_atomic, write_json
from .shapes import CONFIG, DATA, ENVIRONMENT, METRICS, RESULT, figures_fault


def folder_of(out: Path, setting: Setting) -> Path:
    """Where a run lives under `out`; what the user changed is part of the name."""
    changes = ",".join(f"{name}={value}" for name, value in sorted(setting.overrides.items()))
    if len(changes) > 60 or not re.fullmatch(r"[\w.,=+-]*", changes):
        changes = hashlib.sha256(changes.encode()).hexdigest()[:12]
    return (
        out / setting.task / setting.scale / (setting.method + f"@{changes}" * bool(changes)) / f"seed-{setting.seed}"
    )


def root_of(path: Path, setting: Setting) -> Path:
    """The folder under which `folder_of` put a run; a run that was put elsewhere is a root of its own.

    >>> from sparring.lab.registry import task
    >>> setting = task("sequential-digits").setting("plain")
    >>> root_of(Path("runs/sequential-digits/tiny/plain/seed-0"), setting).as_posix(), root_of(Path("x"), setting).as_posix()
    ('runs', 'x')
    """
    end = folder_of(Path(), setting).parts
    return Path(*path.parts[: -len(end)]) if path.parts[-len(end) :] == end else path


def config_of(setting: Setting) -> dict[str, Any]:
    """What decides the result: two runs that agree on it are the same run."""
    names = ("task", "method", "scale", "seed")
    return {
        **{name: getattr(setting, name) for name in names},
        "values": dict(setting.values),
        "overrides": dict(setting.overrides),
        **({"source": setting.source} if setting.source else {}),
    }


def read_metrics(folder: Path, tail: bool = True) -> list[dict[str, Any]]:
    """The epochs recorded in a run folder.

    Args:
        folder: the run folder.
        tail: allow a last line that a kill cut short; it does not count.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it ends in the middle of a line")
            record = opened(line, METRICS)
            if wrong := figures_fault(record["probe"]):
                raise ValueError(wrong)
        except ValueError as error:
            if tail and number == len(lines):
                break
            raise Damaged(f"{path}, line {number}, is damaged ({error}); {AGAIN}") from error
        records.append(record)
    return records


def read_figures(folder: Path) -> list[dict[str, Any]]:
    """The figures that a finished run left for the report."""
    found = read_json(folder / "figures.json", {"figures": list})["figures"]
    if wrong := figures_fault(found):
        raise Damaged(f"{folder / 'figures.json'} is damaged ({wrong}); {AGAIN}")
    return list(found)


def read_probes(folder: Path) -> list[dict[str, Any]]:
    """The figures of probes made after the run."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("probe-*.json")):
        figures = read_json(path, {"figures": list})["figures"]
        if wrong := figures_fault(figures):
            raise Damaged(f"{path} is damaged ({wrong}); delete it and probe again")
        found += figures
    return found


def finished(folder: Path) -> dict[str, Any] | None:
    """The result of a run that has all it should have, or None: the run has more to do, or its files must be mended.

    The weights are the ones that the result is about, to the last byte.
    """
    try:
        result = read_json(folder / "result.json", RESULT)
        best = index_of(folder / "state.json").get("best")
        read_figures(folder)
        if len(read_metrics(folder, tail=False)) != result["epochs"]:
            return None
    except RunError:
        return None
    if best is None or result.get("weights") not in (None, best["sha256"]):
        return None
    known = fingerprint([folder / best["file"]], folder)  # read once, then again only if the file changes
    return result if known.get(best["file"]) == best["sha256"] else None


class Folder:
    """The files of one run, written by the main process only."""

    def __init__(self, path: Path, setting: Setting, main: bool = True) -> None:
        self.path, self.setting, self.main = path, setting, main
        self.saved = time.monotonic()

    def open(self, command: str) -> None:
        """Claim the folder for this setting, or say why it cannot be."""
        path, config = self.path / "config.json", config_of(self.setting)
        if path.exists():
            there = read_json(path, CONFIG)
            if there != config:
                old, new = {**there, **there["values"]}, {**config, **config["values"]}
                changed = [name for name in sorted({*old, *new}) if name != "values" and old.get(name) != new.get(name)]
                raise RunError(f"{self.path} holds a run with another {', '.join(changed)}; choose another --out")
        elif self.main:
            write_json(self.path / "environment.json", {**environment.describe(), "command": command})
            write_json(path, config)

    def check_environment(self) -> None:
        """Note other versions than those the run was started with: the rest of it may differ in the last digits."""
        path = self.path / "environment.json"
        before, now = read_json(path, ENVIRONMENT), environment.describe()
        latest = before.get("resumed", [before])[-1]
        if changes := environment.changes(latest, now):
            log.warning("%s goes on with other versions (%s); the last digits may differ", self.path, changes)
            later = {name: now[name] for name in ("python", "packages", "cpu")}
            if self.main:
                write_json(path, {**before, "resumed": [*before.get("resumed", []), later]})

    def check_data(self, files: Mapping[str, str]) -> None:
        """Note what a new run read; refuse to go on with other data than it began with."""
        path = self.path / "files.json"
        if path.exists():
            refuse_other_data(self.path, read_json(path, DATA)["files"], files)
        elif self.main:
            write_json(path, {"files": dict(files)})

    def append(self, record: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a") as file:
                file.write(json.dumps(sealed(record)) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error

    def save(self, session: Session) -> None:
        """A checkpoint."""
        parts = session.state()
        if self.main:
            path = self.path / "metrics.jsonl"
            try:
                with open(path, "a") as file:
                    os.fsync(file.fileno())  # the checkpoint's epochs must not be on disk before their metrics
            except OSError as error:
                raise cannot_write(path, error) from error
            checkpoint.save(self.path, parts)
        self.saved = time.monotonic()

    def restore(self, session: Session) -> None:
        """Go back to the last checkpoint; lines of metrics.jsonl written after it are dropped."""
        parts = checkpoint.load(self.path, mend=self.main)
        if parts and "state" in parts:  # a finished run that lost its result has weights only: it starts again
            try:
                session.restore(parts)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise RunError(
                    f"the checkpoint in {self.path} does not fit the model and optimiser that its settings make now "
                    f"({first_line(error)}); was it made by another version? Choose another --out"
                ) from error
        if self.main:
            epoch = session.progress.epoch
            kept = [line for line in read_metrics(self.path) if line["epoch"] <= epoch] if epoch else []
            if [line["epoch"] for line in kept] != list(range(1, epoch + 1)):
                raise Damaged(f"{self.path / 'metrics.jsonl'} lacks epochs that the checkpoint has; {AGAIN}")
            text = "".join(json.dumps(sealed(line)) + "\n" for line in kept)
            write_atomic(self.path / "metrics.jsonl", text.encode())


def refuse_other_data(folder: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise where the files that were read are not the files a run was trained on."""
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise RunError(
            f"{folder} was trained on other data: {changed[0]}{more} differs; choose another --out, or the same --data"
        )


def check_finished_data(folder: Path, setting: Setting) -> None:
    """Refuse a finished run for reuse where the data folder holds other files than it was trained on."""
    path, root = folder / "files.json", folder_of_data(setting.data)
    if path.exists() and root.is_dir():
        then = read_json(path, DATA)["files"]
        refuse_other_data(folder, then, fingerprint(map(root.joinpath, then), root))
