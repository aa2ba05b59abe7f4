"""Where tasks are found by name.

>>> "sequential-digits" in tasks()
True
>>> task("sequential-digits").score
'error'
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from .errors import unknown
from .task import Task
from .tasks import MODULES


@cache
def tasks() -> Mapping[str, Task]:
    """Every registered task by name, in the order of `sparring.lab.tasks.MODULES`."""
    found: dict[str, Task] = {}
    for module in MODULES:
        for entry in import_module(f"{__package__}.tasks.{module}").TASKS:
            if entry.name in found:
                raise ValueError(f"two tasks are called {entry.name!r}; the second is in tasks/{module}.py")
            found[entry.name] = entry
    return found


def task(name: str) -> Task:
    """The task called `name`; an error that suggests near names otherwise."""
    known = tasks()
    if name not in known:
        raise unknown("task", name, known)
    return known[name]
