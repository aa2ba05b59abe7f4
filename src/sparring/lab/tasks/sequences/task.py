"""Digits read as sequences: pixel by pixel, row by row, or in a fixed random order.

The tasks of "Adversarial Dropout for Recurrent Neural Networks" (table 1): an LSTM reads an image and names the digit
from its last hidden state. Targets of the paper, test error in percent on sMNIST / pMNIST: no dropout 1.018 / 9.924,
variational dropout .721 / 5.218, fraternal dropout .720 / 5.121, adversarial dropout .705 / 5.046 (K = 1), .644 / 5.030
(K = 2).
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ....metrics import expected_calibration_error
from ...data.digits import handwritten
from ...data.idx import mnist
from ...errors import LabError
from ...models.recurrent import SequenceClassifier
from ...task import Data, Setting, Split, Task, Value
from .figures import figures, probe
from .methods import METHODS


@cache
def order(length: int) -> Tensor:
    """The fixed random order of the permuted tasks: that of the released code, numpy's with seed 10."""
    return torch.from_numpy(np.random.RandomState(10).permutation(length))


def sequences(images: Tensor, setting: Setting) -> Tensor:
    """Images (N, height, width) in [0, 1] as sequences (N, T, features).

    `pool` averages squares of that many pixels first, `step` pixels are read at a time, in a random order if `permuted`.
    """
    if setting["pool"] > 1:
        images = nn.functional.avg_pool2d(images[:, None], setting["pool"])[:, 0]
    flat = images.flatten(1)
    if setting["permuted"]:
        flat = flat[:, order(flat.shape[1])]
    return flat.unflatten(1, (-1, setting["step"]))


def digits(setting: Setting) -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test."""
    images, labels = handwritten()
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = sequences(torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16, setting)[shuffled]
    targets = torch.tensor(labels)[shuffled]
    return Data(
        train=Split(inputs[:1000], targets[:1000]),
        validation=Split(inputs[1000:1297], targets[1000:1297]),
        test=Split(inputs[1297:], targets[1297:]),
    )


def read_mnist(folder: Path | None, split: str) -> tuple[Tensor, Tensor]:
    """MNIST's images in [0, 1] and labels."""
    found = mnist(split, folder)
    return torch.from_numpy(found.images).float().div_(255), torch.from_numpy(found.labels).long()


def mnist_sequences(setting: Setting) -> Data:
    """MNIST's 60,000 digits, the last 5,000 to validate; `examples`, `validated` and `tested` above 0 take only so many."""
    if setting.scale == "tiny":
        return digits(setting)
    count, tested = setting["examples"] or 55_000, setting["tested"] or 10_000
    if count > 55_000:
        raise LabError(f"examples={count} does not fit; at most 55,000 train, the last 5,000 images validate")
    (images, labels), (unseen, answers) = (read_mnist(setting.data, split) for split in ("train", "test"))
    held = slice(55_000, 55_000 + (setting["validated"] or min(5_000, tested)))
    return Data(
        train=Split(sequences(images[:count], setting), labels[:count]),
        validation=Split(sequences(images[held], setting), labels[held]),
        test=Split(sequences(unseen[:tested], setting), answers[:tested]),
    )


def build(setting: Setting, data: Data) -> nn.Module:
    """One LSTM and a linear classifier."""
    return SequenceClassifier(data.train.inputs.shape[-1], setting["hidden"], 10, setting["init"])


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Error and calibration error in percent, and cross-entropy."""
    outputs = torch.cat([model(inputs) for inputs, _ in split.batches(500)])
    return {
        "error": 100 * float((outputs.argmax(-1) != split.targets).double().mean()),
        "ece": 100 * expected_calibration_error(outputs.softmax(-1), split.targets),
        "loss": float(nn.functional.cross_entropy(outputs, split.targets)),
    }


# Every number's source stands in tests/lab/test_paper_scales.py. The released code clips by value where the appendix says
# by norm. `pool`, `step` and the numbers of examples shorten the sequences at the smaller scales.
PAPER: dict[str, Value] = {
    "optimiser": "rmsprop",
    "smoothing": 0.5,
    "lr": 1e-3,
    "clip_value": 1.0,
    "schedule": "gaussian",
    "decay_from": 0.8,
    "epochs": 250,
    "init": "released",
    "batch": 100,
    "hidden": 100,
    "pool": 1,
    "step": 1,
    "examples": 0,
    "validated": 0,
    "tested": 0,
}
SHORT: dict[str, Value] = {
    **PAPER,
    "clip": 1.0,
    "clip_value": 0.0,
    "schedule": "linear",
    "decay_from": 0.5,
    "init": "gates",
}
SMALL: dict[str, Value] = {**SHORT, "epochs": 5, "step": 28, "examples": 10_000}  # a row of 28 pixels at a time
TINY: dict[str, Value] = {**SHORT, "epochs": 3, "batch": 50, "hidden": 64, "step": 8, "lr": 3e-3}


def sequence_task(name: str, summary: str, load: Callable[[Setting], Data], permuted: bool, real: bool) -> Task:
    """The same task over other pixels."""
    scales = {"tiny": TINY, **({"small": SMALL, "paper": PAPER} if real else {})}
    return Task(
        name=name,
        summary=summary,
        score="error",
        better="lower",
        scales={scale: {**values, "permuted": permuted} for scale, values in scales.items()},
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        figures=figures,
        probe=probe,
        paper="Adversarial Dropout for Recurrent Neural Networks (Park et al. 2019), table 1 and appendix 4",
    )


TASKS = (
    sequence_task("sequential-digits", "8 x 8 digits read as a sequence by an LSTM", digits, False, False),
    sequence_task("smnist", "MNIST in scanline order, read by an LSTM", mnist_sequences, False, True),
    sequence_task("pmnist", "MNIST in a fixed random order, read by an LSTM", mnist_sequences, True, True),
)
