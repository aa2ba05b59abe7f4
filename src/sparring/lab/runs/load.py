"""A finished run brought back to life: its data, its model with the best weights, its figures."""

from pathlib import Path
from typing import Any

import torch

from ..data.files import folder_of
from ..data.fingerprint import fingerprint, noted
from ..errors import RunError
from ..registry import task_of
from ..task import Setting
from ..training.train import Session, score
from . import checkpoint
from .files import Damaged, log, read_json
from .folder import refuse_other_data
from .needed import bring_helpers
from .run import prepare
from .shapes import CONFIG, DATA, RESULT


def setting_of(folder: Path, data: Path | None = None) -> Setting:
    """What a run folder says was asked for."""
    if not (folder / "config.json").exists():
        raise RunError(f"{folder} is not a run folder (it has no config.json)")
    config = read_json(folder / "config.json", CONFIG)
    names = ("task", "method", "scale", "seed", "values", "overrides")
    setting = Setting(data=data, source=config.get("source", ""), **{name: config[name] for name in names})
    task_of(setting).method(setting.method)
    return setting


def best_weights(folder: Path) -> dict[str, Any]:
    """The best weights of a run; of a finished one, those that its result is about and no others."""
    parts, done = checkpoint.load(folder) or {}, (folder / "result.json").exists()
    if not parts.get("best") and not (done and "best" in parts):  # a closed form is done without parameters
        raise RunError(f"{folder} has no weights yet; let `sparring run` finish an epoch first")
    if done:
        wanted = read_json(folder / "result.json", RESULT).get("weights")
        index = checkpoint.index_of(folder / checkpoint.NEWEST)
        if wanted not in (None, index.get("best", {}).get("sha256")):
            raise Damaged(f"the weights in {folder} are not those of its result; the same `sparring run` mends it")
    else:
        log.warning("%s is not finished; these are its best weights so far", folder)
    return dict(parts["best"])


def load_run(folder: Path, data: Path | None = None) -> Session:
    """The session of a run with its best weights in the model.

    Args:
        folder: a run folder with a checkpoint.
        data: folder of the real data, where the task needs it.
    """
    setting = setting_of(folder, data)
    weights = best_weights(folder)
    with noted() as files:
        session = prepare(setting)
    if (folder / "files.json").exists():
        refuse_other_data(folder, read_json(folder / "files.json", DATA)["files"], fingerprint(files, folder_of(data)))
    try:
        session.model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise RunError(
            f"the weights in {folder} do not fit the model that its settings and data make now; "
            "was it trained on other data, or by another version?"
        ) from error
    session.model.eval()
    bring_helpers(session, folder)
    return session


def score_run(folder: Path, split: str, data: Path | None = None) -> dict[str, Any]:
    """The task's figures for a run's best weights on a split."""
    torch.set_num_threads(1)
    return score(load_run(folder, data), split)
