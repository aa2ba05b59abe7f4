"""The tasks. One file each (or one per family); a file defines `TASKS`, a tuple of `sparring.lab.task.Task`.

Adding a task: write the file, add its name here, done. `sparring.lab.task` says what a task is, `sequences.py` is the
example to copy.
"""

MODULES: tuple[str, ...] = (
    "sequences",
    "language",
    "sentiment",
    "few_labels",
    "toy",
    "glue",
    "translation",
    "recsys",
    "ensembles",
    "attention",
    "dropouts",
    "own",
)
