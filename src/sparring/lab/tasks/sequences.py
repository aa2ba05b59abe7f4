"""Digits read as sequences: pixel by pixel, row by row, or in a fixed random order.

The tasks of "Adversarial Dropout for Recurrent Neural Networks" (table 1): an LSTM reads an image and names the digit
from its last hidden state. Targets of the paper, test error in percent on sMNIST / pMNIST: no dropout 1.018 / 9.924,
variational dropout .721 / 5.218, fraternal dropout .720 / 5.121, adversarial dropout .705 / 5.046 (K = 1), .644 / 5.030
(K = 2).
"""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparring as sp

from ..models.recurrent import SequenceClassifier
from ..task import Data, Method, Setting, Split, Task, Trainable, Value


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """Cross entropy and nothing else."""
    return sp.Objective(model, sp.cross_entropy)


def adversarial(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """The loss at the worst input of an L2 ball."""
    return sp.recipes.adversarial_training(model, sp.cross_entropy, ball=sp.L2(setting["radius"]))


def vat(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """KL to the worst input of an L2 ball, labels unseen."""
    return sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(setting["radius"]), xi=setting["xi"])


def salt(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    """VAT's ball, with the model differentiating through the opponent's ascent."""
    return sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(setting["radius"]), steps=setting["steps"])


def sequences(images: Tensor, setting: Setting) -> Tensor:
    """Images (N, height, width) as sequences (N, T, features): `step` pixels at a time, permuted if asked for."""
    flat = images.flatten(1)
    if setting["permuted"]:
        flat = flat[:, torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0))]
    return flat.unflatten(1, (-1, setting["step"]))


def digits(setting: Setting) -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = sequences(torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16, setting)[order]
    targets = torch.tensor(labels)[order]
    return Data(
        train=Split(inputs[:1000], targets[:1000]),
        validation=Split(inputs[1000:1297], targets[1000:1297]),
        test=Split(inputs[1297:], targets[1297:]),
        extra={"classes": 10},
    )


def build(setting: Setting, data: Data) -> nn.Module:
    """One LSTM and a linear classifier."""
    return SequenceClassifier(data.train.inputs.shape[-1], setting["hidden"], data.extra["classes"])


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    """Test error in percent and cross entropy."""
    wrong, loss = 0, 0.0
    for inputs, targets in split.batches(500):
        outputs = model(inputs)
        wrong += int((outputs.argmax(-1) != targets).sum())
        loss += float(nn.functional.cross_entropy(outputs, targets, reduction="sum"))
    return {"error": 100 * wrong / len(split), "loss": loss / len(split)}


METHODS: tuple[Method, ...] = (
    Method("plain", "cross entropy, no dropout", plain),
    Method("adversarial_training", "loss at the worst input nearby", adversarial, {"radius": 0.5}),
    Method("vat", "KL to the worst input nearby", vat, {"radius": 0.5, "xi": 0.1}),
    Method("salt", "VAT with a differentiated opponent", salt, {"radius": 0.5, "steps": 1}),
)

# Appendix 4: RMSProp with decay .5, rate 1e-3 annealed to zero over the last 50 epochs, clip 1.
TRAINING: dict[str, Value] = {
    "optimiser": "rmsprop",
    "smoothing": 0.5,
    "lr": 1e-3,
    "clip": 1.0,
    "schedule": "linear",
    "decay_from": 0.5,
}


def sequence_task(name: str, summary: str, load: Callable[[Setting], Data], permuted: bool) -> Task:
    """The same task over other pixels."""
    tiny: dict[str, Value] = {**TRAINING, "permuted": permuted, "step": 8, "hidden": 32, "batch": 50, "epochs": 3}
    return Task(
        name=name,
        summary=summary,
        score="error",
        better="lower",
        scales={"tiny": tiny},
        methods=METHODS,
        load=load,
        build=build,
        evaluate=evaluate,
        paper="Adversarial Dropout for Recurrent Neural Networks, table 1 and appendix 4",
    )


TASKS = (sequence_task("sequential-digits", "8 x 8 digits read as a sequence by an LSTM", digits, permuted=False),)
