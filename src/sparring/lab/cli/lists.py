"""`sparring tasks` and `sparring methods`: what there is to try."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import unknown
from ..task import Task
from ..training.settings import DEFAULTS
from .answer import Answer


def described(task: Task) -> dict[str, Any]:
    """A task for programs."""
    return {
        "name": task.name,
        "summary": task.summary,
        "score": task.score,
        "better": task.better,
        "baseline": task.baseline,
        "paper": task.paper,
        "scales": task.scales,
        "loop": DEFAULTS,
        "methods": {m.name: {"summary": m.summary, "settings": m.settings, "scales": m.scales} for m in task.methods},
    }


def list_tasks(
    name: Annotated[str | None, typer.Argument(metavar="[TASK]", help="show one task in full")] = None,
) -> None:
    """List the tasks, or show one with its methods and settings.

    Examples: `sparring tasks`, `sparring tasks sequential-digits`
    """
    from ..registry import broken_plugins, task, tasks
    from .show import console, listing, table

    out = console()
    if name is None:
        made = table("tasks", "task", "what it is", "score", "scales", "methods", numbers=("methods",))
        for entry in tasks().values():
            made.add_row(entry.name, entry.summary, entry.score, listing(entry.scales), str(len(entry.methods)))
        Answer.say(tasks=[described(entry) for entry in tasks().values()], left_out=dict(broken_plugins()))
        out.print(made)
        for broken in broken_plugins().values():
            out.print(escape(f"left out: {broken}"))
        return
    entry = task(name)
    Answer.say(task=described(entry))
    out.print(f"[bold]{entry.name}[/]: {escape(entry.summary)}\nscore: test {entry.score}, {entry.better} is better")
    if entry.paper:
        out.print(f"from: {escape(entry.paper)}")
    made = table("methods", "method", "what it does", "settings of its own")
    for method in entry.methods:
        own = listing(f"{key}={value}" for key, value in method.settings.items())
        made.add_row(method.name + (" (baseline)" if method.name == entry.baseline else ""), method.summary, own)
    out.print(made)
    for scale, values in entry.scales.items():
        out.print(f"[bold]{scale}[/]: {escape(listing(f'{key}={value}' for key, value in values.items()))}")
        for method in entry.methods:
            if changes := listing(f"{key}={value}" for key, value in method.scales.get(scale, {}).items()):
                out.print(f"  {method.name}: {escape(changes)}")
    said = {key for values in entry.scales.values() for key in values}
    loop = listing(f"{key}={value}" for key, value in DEFAULTS.items() if key not in said)
    out.print(f"[bold]training loop, at every scale[/]: {escape(loop)}")


def list_methods(
    name: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="show the tasks of one method")] = None,
) -> None:
    """List the methods and the tasks that know them.

    Examples: `sparring methods`, `sparring methods salt`
    """
    from ..registry import tasks
    from .show import console, listing, table

    found: dict[str, tuple[str, list[str]]] = {}
    for task in tasks().values():
        for method in task.methods:
            found.setdefault(method.name, (method.summary, []))[1].append(task.name)
    if name is not None and name not in found:
        raise unknown("method", name, found)
    shown = {method: about for method, about in found.items() if name in (None, method)}
    Answer.say(methods={method: {"summary": what, "tasks": homes} for method, (what, homes) in shown.items()})
    made = table("methods", "method", "what it does", "tasks")
    for method_name, (summary, homes) in shown.items():
        made.add_row(method_name, summary, listing(homes))
    console().print(made)
