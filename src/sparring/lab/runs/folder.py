"""One run = one folder: what was asked for, what happened, and the state to go on from.

```
OUT/TASK/SCALE/METHOD/seed-0/
  config.json       what decides the result          environment.json  versions, machine, command
  metrics.jsonl     one line per epoch               state.json        the checkpoint, with *.safetensors
  result.json       the end: test figures, costs     figures.json      data of the report's figures
  data.json         where the user's own examples come from, and which rows are in which split
```

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

from . import checkpoint, environment
from ..errors import RunError
from ..task import Setting
from ..training.train import Session


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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The epochs recorded in a run folder; a line cut short by a kill is not one."""
    path, records = folder / "metrics.jsonl", []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
                records.append({**record, "epoch": int(record["epoch"])})
            except (ValueError, TypeError, KeyError):
                break
    return records


class Folder:
    """The files of one run, written by the main process only."""

    def __init__(self, path: Path, setting: Setting, main: bool = True) -> None:
        self.path, self.setting, self.main = path, setting, main
        self.saved = time.monotonic()

    def open(self, command: str) -> None:
        """Claim the folder for this setting, or say why it cannot be."""
        path, config = self.path / "config.json", config_of(self.setting)
        if path.exists():
            there = checkpoint.read_json(path)
            if there != config:
                old, new = {**there, **there.get("values", {})}, {**config, **config["values"]}
                changed = [name for name in sorted({*old, *new}) if name != "values" and old.get(name) != new.get(name)]
                raise RunError(f"{self.path} holds a run with another {', '.join(changed)}; choose another --out")
        elif self.main:
            checkpoint.write_json(self.path / "environment.json", {**environment.describe(), "command": command})
            checkpoint.write_json(path, config)

    def append(self, record: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a") as file:
                file.write(json.dumps(checkpoint.plain(record)) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}; make room and run again") from error

    def save(self, session: Session) -> None:
        """A checkpoint."""
        parts = session.state()
        if self.main:
            with open(self.path / "metrics.jsonl", "a") as file:
                os.fsync(file.fileno())  # the checkpoint's epochs must not be on disk before their metrics
            checkpoint.save(self.path, parts)
        self.saved = time.monotonic()

    def restore(self, session: Session) -> None:
        """Go back to the last checkpoint; lines of metrics.jsonl written after it are dropped."""
        parts = checkpoint.load(self.path)
        if parts is not None:
            session.restore(parts)
        if self.main:
            kept = [line for line in read_metrics(self.path) if line["epoch"] <= session.progress.epoch]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            checkpoint.write_atomic(self.path / "metrics.jsonl", text.encode())
