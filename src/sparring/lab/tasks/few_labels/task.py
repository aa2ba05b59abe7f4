"""Few labels, many images: the digits of scikit-learn with 50 labels, MNIST with 100 or 1,000.

The task of "Virtual Adversarial Training" (Miyato et al. 2018, table 2), test error in percent with 100 labels: VAT 1.36
to 2.33, supervised about 22.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ....metrics import expected_calibration_error
from ...data.digits import digits as read_digits
from ...data.fingerprint import remembered
from ...data.idx import mnist
from ...models.mlp import MLP
from ...task import Data, Setting, Split, Task, Value
from .methods import METHODS

CLASSES = 10


def some_of_each(labels: Tensor, count: int, seed: int) -> Tensor:
    """The numbers of `count` examples, equally many of each class, drawn with `seed`."""
    if count % CLASSES or not 0 < count <= CLASSES * int(torch.bincount(labels, minlength=CLASSES).min()):
        raise ValueError(
            f"labels={count} does not fit; take a multiple of {CLASSES} that every class can give its share of"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shares = [order[labels[order] == k][: count // CLASSES] for k in range(CLASSES)]
    return torch.cat(shares)


def few(inputs: Tensor, labels: Tensor, held: int, tested: tuple[Tensor, Tensor], setting: Setting) -> Data:
    """The last `held` examples validate; of the others all are seen and `labels` are labelled, which ones depends on the seed."""
    pool, known = inputs[:-held], labels[:-held]
    chosen = some_of_each(known, setting["labels"], setting.seed)
    return Data(
        train=Split(pool[chosen], known[chosen]),
        validation=Split(inputs[-held:], labels[-held:]),
        test=Split(*tested),
        unlabelled=Split(pool),
    )


@cache
def flat_digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits as rows of 64 numbers in [0, 1], in a fixed random order."""
    found = read_digits("all")
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(found.images).flatten(1)[order].float() / 255, torch.from_numpy(found.labels)[order]


def digits(setting: Setting) -> Data:
    """1,797 digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test."""
    inputs, labels = flat_digits()
    return few(inputs[:1297], labels[:1297], 297, (inputs[1297:], labels[1297:]), setting)


@remembered(2)
def flat_mnist(folder: Path | None, split: str) -> tuple[Tensor, Tensor]:
    """MNIST as rows of 784 numbers in [0, 1]."""
    found = mnist(split, folder)
    return torch.from_numpy(found.images).flatten(1).float().div_(255), torch.from_numpy(found.labels)


def digits_or_mnist(setting: Setting) -> Data:
    """MNIST: 59,000 digits to train, 1,000 to validate, 10,000 to test; at `tiny` the small digits in its place."""
    if setting.scale == "tiny":
        return digits(setting)
    return few(*flat_mnist(setting.data, "train"), 1000, flat_mnist(setting.data, "test"), setting)


def build(setting: Setting, data: Data) -> nn.Module:
    """Two hidden layers with batch norm."""
    return MLP(data.train.inputs.shape[1], (setting["hidden"],) * 2, CLASSES, 1 - setting["keep"])


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Error and ECE in percent, cross-entropy, and how many classes are never predicted: a collapse shows there."""
    outputs = torch.cat([model(inputs) for inputs, _ in split.batches(1000)])
    guess = outputs.argmax(-1)
    return {
        "error": 100 * float((guess != split.targets).double().mean()),
        "ece": 100 * expected_calibration_error(outputs.softmax(-1), split.targets),
        "loss": float(nn.functional.cross_entropy(outputs, split.targets)),
        "missing classes": float(CLASSES - len(guess.unique())),
    }


# Miyato et al. 2018, appendix D, with fewer and wider layers: Adam 2e-3, the rate falls to zero over the last half.
MNIST: dict[str, Value] = {
    "labels": 100,
    "hidden": 600,
    "keep": 1.0,
    "optimiser": "adam",
    "lr": 2e-3,
    "schedule": "linear",
    "decay_from": 0.5,
    "batch": 64,
    "unlabelled_batch": 256,
    "epochs": 20,
    "epoch_batches": 200,
}
DIGITS: dict[str, Value] = {
    **MNIST,
    "labels": 50,
    "hidden": 200,
    "batch": 50,
    "unlabelled_batch": 128,
    "epochs": 20,
    "epoch_batches": 50,
}


def few_labels(name: str, summary: str, load: Callable[[Setting], Data], real: bool) -> Task:
    """The same task over other images."""
    return Task(
        name=name,
        summary=summary,
        score="error",
        better="lower",
        scales={"tiny": DIGITS, "small": MNIST, "paper": {**MNIST, "epochs": 500}} if real else {"tiny": DIGITS},
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        paper="Virtual Adversarial Training (Miyato et al. 2018), table 2 and appendix D",
    )


TASKS = (
    few_labels("few-labels-digits", "8 x 8 digits with 50 labels, the others unlabelled", digits, False),
    few_labels("few-labels-mnist", "MNIST with 100 or 1,000 labels, the others unlabelled", digits_or_mnist, True),
)
