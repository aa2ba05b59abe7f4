"""Who liked what: the published logs binarised as in the paper, users split by the run's seed."""

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from ...data.interactions import Judged, implicit_feedback, strong_split
from ...data.ratings.ratings import named_ratings
from ...errors import LabError
from ...models.vae import Rows
from ...task import Data, Setting, Split


def likes(setting: Setting) -> csr_array:
    """The users x items matrix: generated where `ratings` is empty, else the logs it names, binarised as published.

    With `users` above 0 only so many of them are kept, drawn at random.
    """
    if not setting["ratings"]:
        rng = np.random.default_rng(0)
        taste = rng.dirichlet(np.full(5, 0.2), 240) @ rng.dirichlet(np.full(150, 0.1), 5)  # five genres, each its films
        drawn = np.log(taste + 1e-4) + rng.gumbel(size=taste.shape)  # the 20 largest are 20 draws without replacement
        return csr_array((drawn >= np.sort(drawn, axis=1)[:, [-20]]).astype(np.float32))
    log = named_ratings(setting.data, *setting["ratings"].split())
    thresholds = (setting[name] for name in ("min_rating", "min_user_items", "min_item_users"))
    matrix = implicit_feedback(log, *thresholds).matrix
    count, wanted = matrix.shape[0], setting["users"]
    if 0 < wanted < count:
        matrix = csr_array(matrix[np.sort(np.random.default_rng(0).permutation(count)[:wanted])])
    asked = setting["validation_users"] + setting["test_users"]
    if asked >= matrix.shape[0]:
        raise LabError(
            f"{setting.task}: {asked} users to validate and test leave none of {matrix.shape[0]} to train on; "
            "lower --set validation_users=... test_users=..."
        )
    return matrix


def load(setting: Setting) -> Data:
    """Users split by the run's seed."""
    split = strong_split(likes(setting), setting["validation_users"], setting["test_users"], setting.seed)
    return Data(
        train=Split(torch.arange(split.train.shape[0]), split.train, cut),
        validation=judged(split.validation),
        test=judged(split.test),
    )


def cut(ids: Tensor, matrix: csr_array) -> tuple[Rows, None]:
    """A batch of sparse rows; this is where the matrix stops being one."""
    return Rows.of(matrix, ids), None


def judged(users: Judged) -> Split:
    """New users, with what they show and what is held out as the target."""
    return Split(torch.arange(users.fold_in.shape[0]), users)
