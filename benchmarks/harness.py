"""Side-by-side timing: CPU time, one thread, rounds interleaved, ratios to a named reference with their spread."""

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def keep_memory() -> None:
    """Stop the allocator from returning memory to the system: page faults would distort long-sequence baselines."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


@dataclass(frozen=True)
class Ratio:
    """Median over rounds of time(variant) / time(reference), with the extremes."""

    name: str
    median: float
    low: float
    high: float
    seconds: float

    def row(self, limit: float | None = None) -> str:
        goal = "" if limit is None else f"  goal {limit:.2f} {'met' if self.median <= limit else 'MISSED'}"
        return f"{self.name:<44} {self.median:6.2f}x  [{self.low:.2f}, {self.high:.2f}]  {self.seconds * 1e3:9.2f} ms{goal}"


def interleave(
    reference: tuple[str, Callable[[], object]],
    variants: dict[str, Callable[[], object]],
    rounds: int = 7,
    repeats: int = 3,
) -> dict[str, Ratio]:
    """Time every variant once per round beside the reference; return the ratios, the reference first (1.0).

    Args:
        reference: name and function that everything is divided by.
        variants: name -> function, no arguments, one unit of work each.
        rounds: interleaved rounds (five at least for a figure worth quoting).
        repeats: calls per measurement; the mean of them counts.
    """
    torch.set_num_threads(1)
    name, base = reference
    everything = {name: base, **variants}
    for work in everything.values():
        work()
    seconds: dict[str, list[float]] = {key: [] for key in everything}
    for _ in range(rounds):
        for key, work in everything.items():
            start = time.process_time()
            for _ in range(repeats):
                work()
            seconds[key].append((time.process_time() - start) / repeats)
    ratios = {}
    for key, times in seconds.items():
        per_round = [t / max(r, 1e-12) for t, r in zip(times, seconds[name], strict=True)]
        ratios[key] = Ratio(key, statistics.median(per_round), min(per_round), max(per_round), statistics.median(times))
    return ratios
