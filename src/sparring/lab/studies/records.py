"""The records of studies: one JSON line a finished run, appended and never edited.

Several processes may append to one file, and a process may be killed while it does: a line is written whole under a
lock, and a torn line is seen and left out.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import LabError, RunError
from ..runs.files import log, opened, sealed
from ..runs.shapes import RECORD
from ..task import Setting

Role = Literal["tuning", "evaluation"]
# What was done before a setting existed whose default does something else.
BEFORE = {"validated": 0}
GONE = {"epsilon", "trs_epsilon"}  # settings that plain training once had without looking at them


@dataclass(frozen=True)
class Record:
    """A finished run as a file of records holds it; `entries` is the whole line."""

    entries: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return int(self.entries["seed"])

    def figure(self, split: str, name: str) -> float:
        """A figure of a split; nan where it is undefined or the run diverged."""
        figures = self.entries[split]
        if figures and name not in figures:
            raise LabError(
                f"runs of {self.entries['task']} have no {split} figure {name!r}; they have {', '.join(figures)}"
            )
        value = (figures or {}).get(name)
        return float("nan") if value is None else float(value)

    def of(self, setting: Setting, role: Role, version: int) -> bool:
        """Whether it is the run of that setting in that role.

        A setting that the record does not know came later; its default is what used to happen without it, but for those of
        `BEFORE`. One that the record alone knows was derived from something else, another encoder or other files.
        """
        mine, theirs = self.entries, setting
        if (mine["task"], mine["scale"], mine["method"]) != (theirs.task, theirs.scale, theirs.method):
            return False
        if (mine["seed"], mine["role"], mine["version"]) != (theirs.seed, role, version):
            return False
        known = mine["values"]
        return known.keys() - GONE <= theirs.values.keys() and all(
            known.get(name, later) == value for name, value, later in sides(theirs)
        )


def sides(setting: Setting) -> list[tuple[str, Any, Any]]:
    """Every setting with its value, and what to take where a record lacks it: the same, unless the study asks for it."""
    return [
        (name, value, BEFORE.get(name, None if name in setting.overrides else value))
        for name, value in setting.values.items()
    ]


def append(path: Path, entries: Mapping[str, Any]) -> None:
    """Add one line: whole or not at all, whoever else is writing."""
    line = (json.dumps(sealed(entries), sort_keys=True) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            size = os.fstat(place).st_size
            torn = size > 0 and os.pread(place, 1, size - 1) != b"\n"  # somebody was killed in the middle of a line
            left = memoryview(b"\n" * torn + line)
            while left:
                left = left[os.write(place, left) :]
            os.fsync(place)
        finally:
            os.close(place)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; make room and run again") from error


def read(path: Path) -> list[Record]:
    """Every whole record of a file; lines that are torn, changed or without a seal are left out, and counted in the log."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    found, left = [], 0
    for line in filter(None, lines):
        try:
            found.append(Record(opened(line, RECORD)))
        except ValueError:
            left += 1
    if left:
        log.warning("%s: %d damaged line%s left out", path, left, "s" * (left > 1))
    return found
