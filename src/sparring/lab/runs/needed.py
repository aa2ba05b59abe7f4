"""Runs that a run needs when it is scored: an attacker's own models, for example. Each is done once and read afterwards."""

import time
from pathlib import Path

from ..errors import RunError
from ..training.randomness import random_state, restore_random_state
from ..training.train import Session
from . import checkpoint
from .folder import folder_of, root_of


def bring_helpers(session: Session, path: Path) -> None:
    """Do the runs that the task names as helpers, or wait for them, and put their models into the session's data.

    They lie beside the run, under the same root, so that every method and seed that names the same helper shares it.

    Args:
        session: whose task is asked; `session.data.helpers` is filled.
        path: the run's folder.
    """
    from .run import execute, prepare

    wanted = session.task.helpers(session.setting)
    if not wanted:
        return
    random = random_state(session.accelerator)
    for name, setting in wanted.items():
        folder = folder_of(root_of(path, session.setting), setting)
        execute(setting, folder, wait=lambda: time.sleep(0.2))
        parts = checkpoint.load(folder)
        if not parts or not parts.get("best"):
            raise RunError(f"{folder} is finished but holds no weights; delete it to do this run again")
        model = prepare(setting, session.accelerator).model
        model.load_state_dict(parts["best"])
        session.data.helpers[name] = model.eval()
    restore_random_state(random, session.accelerator)
