"""What a command found, for programs: with `--json`, one JSON object on standard output and nothing else there."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from ..runs.files import plain


class Answer:
    """The answer of the command that is running."""

    json = False
    found: ClassVar[dict[str, Any]] = {}

    @classmethod
    def begin(cls, wanted: bool) -> None:
        """A new command."""
        cls.json, cls.found = wanted, {}

    @classmethod
    def say(cls, **found: Any) -> None:
        """Add to the answer."""
        cls.found.update(found)

    @classmethod
    def end(cls, code: int) -> None:
        """Print it, if it was asked for."""
        if cls.json:
            print(json.dumps(simple({"exit_code": code, **cls.found}), indent=1, allow_nan=False), file=sys.stdout)


def simple(value: Any) -> Any:
    """Records, paths and numbers as JSON knows them.

    >>> simple({"path": Path("a") / "b", "nan": float("nan"), "list": (1, 2)})
    {'path': 'a/b', 'nan': None, 'list': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: simple(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, dict):
        return {str(name): simple(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [simple(entry) for entry in value]
    return plain(value) if value is None or isinstance(value, (str, int, float)) else str(value)
