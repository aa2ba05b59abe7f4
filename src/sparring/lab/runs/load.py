"""A finished run brought back to life: its data, its model with the best weights, its figures."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import checkpoint
from ..errors import RunError
from ..registry import task as find_task
from .helpers import bring_helpers
from .run import prepare
from ..task import Setting
from ..training.train import Session, score


def setting_of(folder: Path, data: Path | None = None) -> Setting:
    """What a run folder says was asked for."""
    if not (folder / "config.json").exists():
        raise RunError(f"{folder} is not a run folder (it has no config.json)")
    names = ("task", "method", "scale", "seed", "values", "overrides")
    config = checkpoint.read_record(folder / "config.json", *names)
    find_task(config["task"]).method(config["method"])
    return Setting(data=data, **{name: config[name] for name in names})


def load_run(folder: Path, data: Path | None = None) -> Session:
    """The session of a run with its best weights in the model.

    Args:
        folder: a run folder with a checkpoint.
        data: folder of the real data, where the task needs it.
    """
    setting = setting_of(folder, data)
    parts = checkpoint.load(folder)
    if not parts or not parts.get("best"):
        raise RunError(f"{folder} has no weights yet; let `sparring run` finish an epoch first")
    session = prepare(setting)
    try:
        session.model.load_state_dict(parts["best"])
    except RuntimeError as error:
        raise RunError(
            f"the weights in {folder} do not fit the model that its settings and data make now; "
            "was it trained on other data, or by another version?"
        ) from error
    session.model.eval()
    bring_helpers(session, folder)
    return session


def load_model(folder: Path, data: Path | None = None) -> nn.Module:
    """The trained model of a run, in evaluation mode."""
    return load_run(folder, data).model


def score_run(folder: Path, split: str, data: Path | None = None) -> dict[str, Any]:
    """The task's figures for a run's best weights on a split."""
    torch.set_num_threads(1)
    return score(load_run(folder, data), split)
