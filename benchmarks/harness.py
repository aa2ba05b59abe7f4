"""Side-by-side timing: CPU time, one thread, rounds interleaved, ratios to a named reference with their spread."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


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
    turns: int = 1,
) -> dict[str, Ratio]:
    """Time every variant once per round beside the reference; return the ratios, the reference first (1.0).

    Args:
        reference: name and function that everything is divided by.
        variants: name -> function, no arguments, one unit of work each.
        rounds: interleaved rounds (five at least for a figure worth quoting).
        repeats: calls per measurement; the mean of them counts.
        turns: how often everything has its turn within a round; the mean counts. On a machine whose speed changes from second to
            second, many turns of one call each meet the same conditions; many calls in a row do not.
    """
    torch.set_num_threads(1)
    name, base = reference
    everything = {name: base, **variants}
    for work in everything.values():
        work()
    seconds: dict[str, list[float]] = {key: [] for key in everything}
    for _ in range(rounds):
        spent = dict.fromkeys(everything, 0.0)
        for _ in range(turns):
            for key, work in everything.items():
                start = time.process_time()
                for _ in range(repeats):
                    work()
                spent[key] += time.process_time() - start
        for key, total in spent.items():
            seconds[key].append(total / (repeats * turns))
    ratios = {}
    for key, times in seconds.items():
        per_round = [t / max(r, 1e-12) for t, r in zip(times, seconds[name], strict=True)]
        ratios[key] = Ratio(key, statistics.median(per_round), min(per_round), max(per_round), statistics.median(times))
    return ratios


def memory(make: Callable[..., Callable[[], object]], names: Sequence[str], *args: Any) -> None:
    """Print the peak memory of one step of each variant, the first of them the reference, each in a process of its own (Linux).

    Args:
        make: `make(name, *args)` builds the step; must be importable.
        names: the variants.
        args: passed on.
    """
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in names:
        queue = context.Queue()
        worker = context.Process(target=_peak, args=(queue, make, name, *args))
        worker.start()
        found[name] = queue.get()
        worker.join()
    print("\npeak memory of one step")
    for name, mib in found.items():
        print(f"{name:<44} {mib / found[names[0]]:6.2f}x  {mib:9.0f} MiB", flush=True)


def _peak(queue: Any, make: Callable[..., Callable[[], object]], name: str, *args: Any) -> None:
    queue.put(peak(make, name, *args))


def peak(make: Callable[..., Callable[[], object]], name: str, *args: Any) -> float:
    """Peak resident memory of a step above what the imports, the model and one batch hold, in MiB."""
    torch.set_num_threads(1)
    step = make(name, *args)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _resident("VmRSS")
    step()
    return (_resident("VmHWM") - before) / 1024


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
