"""The settings the training loop itself reads: their defaults, and what they may be.

>>> check({**DEFAULTS, "batch": 0})
Traceback (most recent call last):
...
sparring.lab.errors.LabError: batch=0 does not fit; it must be at least 1
"""

import math
from collections.abc import Mapping

from ..errors import LabError, unknown

Value = bool | int | float | str | None

# What the training loop reads when a task does not say otherwise.
DEFAULTS: dict[str, Value] = {
    "epochs": 10,  # 0: nothing to train (closed-form baselines fit themselves in `build`)
    "batch": 32,  # examples of one update and process; a last incomplete batch is left out
    "unlabelled_batch": 0,  # unlabelled examples beside each batch; 0: none
    "epoch_batches": 0,  # batches of an epoch, drawn from pass after pass over the data; 0: one pass
    "tokens": 0,  # above 0: positions of one update and process, padding counted, instead of `batch` examples
    "accumulate": 1,  # batches of one update, whose gradient is that of the mean over all their examples, or tokens
    "optimiser": "adam",  # adam, amsgrad, adamw, sgd, rmsprop
    "lr": 1e-3,
    "momentum": 0.9,  # sgd only
    "beta2": 0.999,  # adam, amsgrad, adamw: decay of the squared gradients
    "smoothing": 0.99,  # rmsprop's alpha
    "weight_decay": 0.0,
    "rates_lr": 0.01,  # learned dropout rates have their own learning rate, and no weight decay
    "schedule": "constant",  # constant, inverse_sqrt, cosine, linear (to lr_end), exponential (times lr_decay an update), gaussian
    "decay_from": 0.0,  # cosine, linear, gaussian: share of all updates after which the decay begins
    "lr_end": 0.0,
    "lr_decay": 1.0,
    "warmup": 0.0,  # share of all updates in which the rate grows from 0
    "clip": 0.0,  # largest norm of the whole gradient; 0: none
    "clip_value": 0.0,  # largest entry of the gradient; 0: none
    "clip_except": "",  # parameters whose names begin so are neither clipped nor counted
    "average": "never",  # score with the mean of the weights: never, always, epochs, stalled (the non-monotone rule)
    "average_epochs": 5,  # epochs: the mean of the weights at the end of the last so many
    "average_patience": 5,  # stalled: epochs that a better score may be old
    "patience": 0,  # epochs without a better validation score before stopping; 0: never
    "precision": "no",  # no, bf16
}
WORDS = {
    "optimiser": ("adam", "amsgrad", "adamw", "sgd", "rmsprop"),
    "schedule": ("constant", "cosine", "linear", "exponential", "inverse_sqrt", "gaussian"),
    "average": ("never", "always", "epochs", "stalled"),
    "precision": ("no", "bf16"),
}
LOWEST = {"batch": 1, "accumulate": 1, "average_epochs": 1}  # 0 for every other number
FREE = ("clip_except",)  # any word
SHARES = ("momentum", "beta2", "smoothing", "decay_from", "warmup")  # at most 1


def check(values: Mapping[str, Value]) -> None:
    """Refuse a setting of the loop that cannot be meant, before anything is trained with it."""
    for name in DEFAULTS.keys() & values.keys():
        value = values[name]
        if name in FREE:
            continue
        if name in WORDS:
            if value not in WORDS[name]:
                raise unknown(name, str(value), WORDS[name])
            continue
        low, high = LOWEST.get(name, 0), 1 if name in SHARES else math.inf
        if not isinstance(value, (int, float)) or not low <= value <= high or math.isinf(value):
            wanted = f"lie between {low} and {high}" if name in SHARES else f"be at least {low}"
            raise LabError(f"{name}={value} does not fit; it must {wanted}")
    if values.get("beta2") == 1:
        raise LabError("beta2=1 does not fit; it must lie below 1")
