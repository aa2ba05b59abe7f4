"""Where tasks are found: the package's by name, other packages' by entry point, the user's own by file.

>>> "sequential-digits" in tasks()
True
>>> task("sequential-digits").score
'error'

A package offers tasks through the entry-point group `sparring.tasks`; each entry is a `Task` or a sequence of them:

```toml
[project.entry-points."sparring.tasks"]
ours = "our_package.tasks:TASKS"
```
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .data.own.places import fingerprint
from .errors import LabError, first_line, unknown
from .source import load_file
from .task import Setting, Task, Value
from .tasks import MODULES

GROUP = "sparring.tasks"


@cache
def tasks() -> Mapping[str, Task]:
    """Every registered task by name: the package's in the order of `sparring.lab.tasks.MODULES`, then other packages'."""
    found = own_tasks()
    return {**found, **plugged(tuple(found))[0]}


@cache
def own_tasks() -> dict[str, Task]:
    """The package's own tasks."""
    found: dict[str, Task] = {}
    for module in MODULES:
        for entry in import_module(f"{__package__}.tasks.{module}").TASKS:
            if entry.name in found:
                raise ValueError(f"two tasks are called {entry.name!r}; the second is in tasks/{module}.py")
            found[entry.name] = entry
    return found


@cache
def plugged(taken: tuple[str, ...]) -> tuple[dict[str, Task], dict[str, str]]:
    """Other packages' tasks by name, and why an entry point gives none: a broken package must not break the others."""
    found: dict[str, Task] = {}
    broken: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            for entry in collected(point.load()):
                if entry.name in taken or entry.name in found:
                    raise LabError(f"a task called {entry.name!r} exists already")
                found[entry.name] = entry
        except Exception as error:  # whatever the other package raises when it is imported
            broken[point.name] = f"entry point {point.value}: {type(error).__name__}: {first_line(error)}"
    return found, broken


def broken_plugins() -> Mapping[str, str]:
    """Entry points that could not be loaded, with the reason."""
    return plugged(tuple(own_tasks()))[1]


def collected(thing: Any) -> tuple[Task, ...]:
    """The tasks in a `Task`, a sequence of them, or a module (its `TASKS`, else every `Task` in it)."""
    if isinstance(thing, Task):
        return (thing,)
    if isinstance(thing, ModuleType):
        thing = getattr(thing, "TASKS", None) or [value for value in vars(thing).values() if isinstance(value, Task)]
    if not isinstance(thing, Iterable):
        raise LabError(f"a task is needed, not a {type(thing).__name__}")
    found = tuple(thing)
    if not found or not all(isinstance(entry, Task) for entry in found):
        raise LabError("no Task is in it; write TASK = Task(...)")
    return found


def task_in(file: str) -> Task:
    """The task of a user's own file, `./mine.py`, or one of several, `./mine.py:name`."""
    path, _, name = file.partition(".py:")
    path = path if not name else path + ".py"
    try:
        found = {entry.name: entry for entry in collected(load_file(path))}
    except LabError as error:
        raise LabError(f"{Path(path).name}: {error}" if "Task" in str(error) else str(error)) from error
    if name and name not in found:
        raise unknown(f"task in {path}", name, found)
    if not name and len(found) > 1:
        raise LabError(f"{path} holds the tasks {', '.join(found)}; name one: {path}:{next(iter(found))}")
    entry = found[name or next(iter(found))]
    if entry.name in tasks():
        raise LabError(f"{path} calls its task {entry.name!r}, a name that is taken; give it another")
    full = str(Path(path).expanduser().resolve())

    def derive(values: Mapping[str, Value], data: Path | None) -> Mapping[str, Value]:
        return {**entry.derive(values, data), "code": fingerprint([Path(full)])}

    scales = {scale: {**values, "code": ""} for scale, values in entry.scales.items()}
    return replace(entry, derive=derive, scales=scales, source=full)


def task(name: str) -> Task:
    """The task called `name`, or in the file `name`; an error that suggests near names otherwise."""
    if name.endswith(".py") or ".py:" in name:
        return task_in(name)
    known = tasks()
    if name in broken_plugins():
        raise LabError(f"the task {name!r} cannot be loaded ({broken_plugins()[name]})")
    if name not in known:
        raise unknown("task", name, known)
    return known[name]


def task_of(setting: Setting) -> Task:
    """The task that a setting was made by; refused where its file has changed since."""
    if not setting.source:
        return task(setting.task)
    found = task(f"{setting.source}:{setting.task}")
    if setting["code"] != fingerprint([Path(setting.source)]):
        raise LabError(f"{setting.source} has changed since this run began; start a new one, or put the old file back")
    return found
