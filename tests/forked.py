"""Processes that begin with everything imported: a fork of one that has done it, so that starting one costs next to nothing."""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "sparring.lab.cli.main",
        "sparring.lab.cli.work",
        "sparring.lab.runs.run",
        "sparring.lab.report.build",
        "sparring.lab.sweep",
        "sparring.lab.tasks.sequences.task",
    ]
)
