"""Training steps in a process that keeps its memory (`keep_memory`, as the lab's processes do) against one that returns it.

    PYTHONPATH=src python benchmarks/bench_memory.py

Two processes take turns, since what the C library was told cannot be taken back. CPU time, system time included.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from harness import Ratio
from sparring.lab.models.transformer import Translator
from sparring.lab.training.memory import keep_memory

Step = Callable[[], Tensor]


def lstm() -> Step:
    """The network of sequential MNIST, pixel by pixel."""
    model, inputs = nn.LSTM(1, 100, batch_first=True), torch.randn(100, 784, 1)
    return lambda: model(inputs)[0].square().mean()


def translator() -> Step:
    """The network of `multi30k` at `small`."""
    model, words = Translator(4000), torch.randint(3, 4000, (64, 20))
    return lambda: model(source=words, target=words).square().mean()


def encoder() -> Step:
    """Six layers of MiniLM's size over 32 sentences of 19 pieces."""
    layer = nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", batch_first=True)
    model, inputs = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(32, 19, 384)
    return lambda: model(inputs).square().mean()


WORK: dict[str, Callable[[], Step]] = {
    "nn.LSTM, T 784, H 100, B 100": lstm,
    "translator 2 + 2 layers, width 128": translator,
    "encoder, 6 layers of 384": encoder,
}


def answer(pipe: Connection, kept: bool, repeats: int) -> None:
    """In a process of its own: the CPU time of a step of whatever is asked for."""
    if kept and not keep_memory():
        raise SystemExit("this C library cannot be told to keep memory")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = {name: make() for name, make in WORK.items()}
    while (name := pipe.recv()) is not None:
        start = time.process_time()
        for _ in range(repeats):
            steps[name]().backward()
        pipe.send((time.process_time() - start) / repeats)


def measure(rounds: int, repeats: int) -> None:
    """Print a pair of rows for each kind of work."""
    context: Any = multiprocessing.get_context("spawn")
    pipes = {}
    for kept in (False, True):
        pipes[kept], end = context.Pipe()
        context.Process(target=answer, args=(end, kept, repeats), daemon=True).start()

    def ask(name: str, kept: bool) -> float:
        pipes[kept].send(name)
        return pipes[kept].recv()

    for name in WORK:
        for kept in pipes:
            ask(name, kept)
        pairs = [(ask(name, False), ask(name, True)) for _ in range(rounds)]
        ratios = [mine / theirs for theirs, mine in pairs]
        returned, kept_too = (statistics.median(times) for times in zip(*pairs))
        print(name)
        print("  " + Ratio("memory returned", 1.0, 1.0, 1.0, returned).row())
        print(
            "  " + Ratio("memory kept", statistics.median(ratios), min(ratios), max(ratios), kept_too).row(), flush=True
        )
    for pipe in pipes.values():
        pipe.send(None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    measure(options.rounds, options.repeats)
