"""Data of the user's own, without a line of Python: `text`, `images`, `table`, `table-regression`."""

from . import images, table, text

TASKS = (*text.TASKS, *images.TASKS, *table.TASKS)

__all__ = ["TASKS"]
