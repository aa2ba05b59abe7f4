"""A task whose examples are never all in memory: `sparring run examples/streaming_task.py --method vat`.

Training reads a generator from start to end in every epoch; validation is a file that stays on the disk, of which only the rows of a
batch are read.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.lab.streamed import Streamed
from sparring.lab.task import Data, Method, Setting, Split, Task, Trainable


def examples(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pass `number` over the data: here they are made up, elsewhere read from files, in an order of that pass's own."""
    generator = torch.Generator().manual_seed(number)
    while True:
        point = torch.randn(2, generator=generator)
        yield point, (point.square().sum() > 1.4).long()


def mapped(rows: int) -> Split:
    """Rows in a file: `mmap_mode="c"` opens it without reading it."""
    path = Path(tempfile.gettempdir()) / f"sparring-streaming-{rows}.npy"
    generator = np.random.default_rng(0)
    np.save(path, generator.standard_normal((rows, 2), dtype=np.float32))
    inputs = torch.from_numpy(np.load(path, mmap_mode="c"))
    return Split(inputs, (inputs.square().sum(1) > 1.4).long())


def load(setting: Setting) -> Data:
    return Data(train=Streamed(examples, count=setting["examples"]), validation=mapped(500))


def build(setting: Setting, data: Data) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


def evaluate(model: nn.Module, split: Split, setting: Setting) -> dict[str, float]:
    right = torch.cat([model(x).argmax(-1) == y for x, y in split.batches(100)])
    return {"accuracy": 100 * float(right.float().mean())}


def plain(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    return sp.Objective(model, sp.cross_entropy)


def vat(model: nn.Module, setting: Setting, data: Data) -> Trainable:
    return sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(0.2))


TASK = Task(
    name="disc",
    summary="inside or outside of a circle, from a stream",
    score="accuracy",
    better="higher",
    scales={"tiny": {"examples": 300, "epochs": 3, "batch": 32, "lr": 0.01}},
    methods=(
        Method("plain", "cross entropy and nothing else", plain),
        Method("vat", "consistency at the worst point nearby", vat),
    ),
    load=load,
    build=build,
    evaluate=evaluate,
)
