"""How the cost of a step grows with the model and the batch: time and peak memory of each method against a plain step.

    python benchmarks/bench_growth.py --rounds 3 --out growth.jsonl    # every axis; what the file has already is not run again
    python benchmarks/bench_growth.py --axes layers,steps --out growth.jsonl
    python benchmarks/bench_growth.py --axes steps --keep-memory --out kept.jsonl   # the allocator gives nothing back: no page faults
    python benchmarks/bench_growth.py --faults --axes parameters --only VAT    # page faults of a step, instead of time
    python benchmarks/bench_growth.py --draw docs --out growth.jsonl   # docs/growth.md from the file, and from kept.jsonl beside it

A transformer encoder; the sites stand at its first layers, so that nothing can be replayed and every pass is a whole pass. The
reference is the plain step of the same model (for LPD of the same ensemble). The passes themselves are timed too, without the
library: what a method would cost if it were nothing but its passes stands beside what it costs. Every point runs in processes of its
own: one for the time (CPU time, one thread, rounds interleaved), one for each method's peak memory.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp
from growth_page import BOUNDS, write
from harness import interleave, peak
from sparring import recipes
from sparring.ensembles import Ensemble, LaplacePriorityDropout, member_cross_entropy
from sparring.lab.training.memory import keep_memory
from sparring.players.attention_kernel import math_attention

CLASSES, WORDS, HEADS = 10, 1000, 4


@dataclass(frozen=True)
class Size:
    """One point: the model, the batch and the method's own numbers."""

    layers: int = 2
    length: int = 64
    batch: int = 8
    steps: int = 1
    sites: int = 1
    width: int = 128


AXES: dict[str, tuple[Size, dict[int, dict[str, int]]]] = {
    "steps": (Size(), {n: {"steps": n} for n in (1, 2, 4, 8)}),
    "layers": (Size(length=32, batch=4), {n: {"layers": n} for n in (2, 6, 12, 24)}),
    # 12 width^2 parameters a layer, four layers: 1, 10, 50 and 150 million, and the embedding.
    "parameters": (
        Size(layers=4, length=8, batch=2),
        {n: {"width": width} for n, width in ((1, 144), (10, 456), (50, 1020), (150, 1768))},
    ),
    "length": (Size(batch=2), {n: {"length": n} for n in (32, 128, 512, 1024)}),
    "batch": (Size(length=16), {n: {"batch": n} for n in (8, 32, 128)}),
    "sites": (Size(layers=24, length=32, batch=4), {n: {"sites": n} for n in (1, 6, 12, 24)}),
}
LEAST_SECONDS = 0.15  # of plain steps in one round
ONLY_ONE_STEP = ("attention AT", "learned dropout")


class Block(nn.Module):
    """Attention and a feed-forward part; a marked block has the places where methods act."""

    def __init__(self, width: int, marked: bool, learned: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        if marked:
            self.site = nn.Identity()
            self.drop = sp.nn.BernoulliDropout(width, keep=0.9, dim=-1) if learned else nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "site"):
            x = self.drop(self.site(x))
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.inner(self.norms[1](x))


class Encoder(nn.Module):
    def __init__(self, size: Size, learned: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size.width)
        self.layers = nn.ModuleList(Block(size.width, n < size.sites, learned) for n in range(size.layers))
        self.head = nn.Linear(size.width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def methods(size: Size) -> dict[str, Callable[[nn.Module], Any]]:
    loss, places, ball, steps = sp.cross_entropy, "layers.*.site", sp.L2(1.0), size.steps
    marked = "|".join(f"layers.{n}.attention" for n in range(size.sites))
    found = {
        "plain": lambda m: lambda x, y: nn.functional.cross_entropy(m(x), y),
        "VAT": lambda m: recipes.vat(m, loss, places, ball=ball, steps=steps),
        "SALT, autograd": lambda m: recipes.salt(m, loss, places, ball=ball, steps=steps),
        "SALT, finite differences": lambda m: recipes.salt(
            m, loss, places, ball=ball, steps=steps, unroll="finite_difference"
        ),
        "adversarial dropout": lambda m: recipes.adversarial_dropout(m, loss, sp.Mask("layers.*.drop"), steps=steps),
        "attention AT": lambda m: recipes.attention_at(m, loss, marked),
        "learned dropout": lambda m: recipes.learnable_bernoulli(m, loss),
    }
    return {name: make for name, make in found.items() if steps == 1 or name not in ONLY_ONE_STEP}


def names(axis: str, size: Size, only: str = "") -> list[str]:
    """The methods at a point, or one of them and what it is compared with. LPD has no steps and no sites."""
    lpd = ["plain ensemble", "LPD"] if axis not in ("steps", "sites") else []
    found = [*methods(size), *lpd]
    return [name for name in found if not only or name in (only, "plain", "plain ensemble" if only == "LPD" else "")]


def passes(size: Size) -> dict[str, Callable[[], None]]:
    """The passes that methods are made of, by hand: a forward, a look (gradient at the first site alone), a second derivative."""
    torch.manual_seed(0)
    tokens, labels = torch.randint(WORDS, (size.batch, size.length)), torch.randint(CLASSES, (size.batch,))
    model = Encoder(size)
    places = [layer.site for layer in model.layers if hasattr(layer, "site")]

    def charge(points: list[Tensor]) -> Tensor:
        def place(module: nn.Module, given: Any, value: Tensor) -> Tensor:
            points.append(torch.zeros_like(value).requires_grad_())
            return value + points[-1]

        handles = [module.register_forward_hook(place) for module in places]
        loss = nn.functional.cross_entropy(model(tokens), labels)
        for handle in handles:
            handle.remove()
        return loss

    def look() -> None:
        points: list[Tensor] = []
        model.requires_grad_(False)
        torch.autograd.grad(charge(points), points)
        model.requires_grad_(True)

    def second() -> None:
        points: list[Tensor] = []
        with math_attention():  # the fused kernel has no second derivative
            found = torch.autograd.grad(charge(points), points, create_graph=True)
        torch.autograd.grad(sum(g.square().sum() for g in found), list(model.parameters()), allow_unused=True)

    return {"forward": lambda: charge([]).item(), "look": look, "second": second}  # type: ignore[dict-item]


def step_named(name: str, size: Size) -> Callable[[], None]:
    """One training step: loss, backward, update."""
    torch.manual_seed(0)
    tokens, labels = torch.randint(WORDS, (size.batch, size.length)), torch.randint(CLASSES, (size.batch,))
    if name in ("plain ensemble", "LPD"):
        dropout = LaplacePriorityDropout() if name == "LPD" else None
        model: nn.Module = Ensemble([Encoder(size) for _ in range(2)], head="head", dropout=dropout)
        objective: Any = lambda x, y: member_cross_entropy(model(x), y).mean()  # noqa: E731
    else:
        model = Encoder(size, learned=name == "learned dropout")
        objective = methods(size)[name](model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        objective(tokens, labels).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)  # many models wait in memory for their turn

    return step


def turns_of(step: Callable[[], None]) -> int:
    """How many turns a round has: one step of a few milliseconds is all noise."""
    step()
    start = time.process_time()
    step()
    return max(1, round(LEAST_SECONDS / (time.process_time() - start)))


def timed(chosen: Sequence[str], size: Size, rounds: int, keep: bool) -> tuple[dict[str, list[float]], int]:
    """name -> median, low and high of the ratios to the plain step; and the turns of a round."""
    torch.set_num_threads(1)
    if keep:
        keep_memory()
    steps = {name: step_named(name, size) for name in chosen}
    for step in steps.values():
        step()  # with the one of `interleave` two: an objective's second step looks at its players with passes of their own
    found: dict[str, list[float]] = {}
    turns = turns_of(steps["plain"])
    for base in ("plain", "plain ensemble"):
        rest = {n: s for n, s in steps.items() if n != base and (n == "LPD") == (base == "plain ensemble")}
        rest.pop("plain", None), rest.pop("plain ensemble", None)
        if base in steps:
            rest |= passes(size) if base == "plain" else {}
            for name, ratio in interleave((base, steps[base]), rest, rounds, repeats=1, turns=turns).items():
                found[name] = [ratio.median, ratio.low, ratio.high, ratio.seconds]
    return found, turns


def faults(name: str, size: Size) -> int:
    """Pages that the system hands out in the fourth step."""
    torch.set_num_threads(1)
    step = step_named(name, size)
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def apart(work: Callable[..., Any], *args: Any) -> Any:
    """Run in a forked process: nothing is imported again, and nothing is left in memory here."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        theirs.send(work(*args))

    worker = context.Process(target=run)
    worker.start()
    theirs.close()  # so that a worker that dies is noticed
    answer = ours.recv()
    worker.join()
    return answer


def measure(axis: str, value: int, size: Size, rounds: int, keep: bool, only: str = "") -> list[dict[str, Any]]:
    chosen = names(axis, size, only)
    ratios, turns = apart(timed, chosen, size, rounds, keep)
    memory = {name: apart(peak, step_named, name, size) for name in chosen}
    rows = []
    for name in chosen:
        base = "plain ensemble" if name in ("plain ensemble", "LPD") else "plain"
        median, low, high, seconds = ratios[name]
        row = {"axis": axis, "value": value, "method": name, "ratio": median, "low": low, "high": high}
        row |= {"seconds": seconds, "mib": memory[name], "memory": memory[name] / memory[base], "rounds": rounds}
        if name in BOUNDS:
            row["by_hand"] = BOUNDS[name](size.steps, *(ratios[part][0] for part in ("forward", "look", "second")))
        rows.append(
            row
            | {
                "size": asdict(size),
                "turns": turns,
                "kept": keep,
                "load": os.getloadavg()[0],
                "torch": torch.__version__,
            }
        )
    return rows


def ends_first(axes: Sequence[str]) -> list[tuple[str, int]]:
    """The points in an order that shows the most if it is cut short: the two ends of every axis, then what lies between."""
    ends = [(axis, value) for axis in axes for value in (min(AXES[axis][1]), max(AXES[axis][1]))]
    return ends + [(axis, value) for axis in axes for value in AXES[axis][1] if (axis, value) not in ends]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="one method instead of all, such as 'attention AT'")
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument(
        "--keep-memory", action="store_true", help="time without page faults: the allocator gives nothing back"
    )
    parser.add_argument("--faults", action="store_true", help="print the page faults of a step instead of timing it")
    parser.add_argument("--out", type=Path, default=Path("growth.jsonl"))
    parser.add_argument("--draw", type=Path, help="the folder of the documentation: draw instead of measuring")
    options = parser.parse_args()
    rows = read(options.out)
    if options.draw is not None:
        write(rows, options.draw, read(options.out.with_name("kept.jsonl")))
        return
    known = {(row["axis"], row["value"]) for row in rows}
    for axis, value in ends_first(options.axes.split(",")):
        base, points = AXES[axis]
        size = replace(base, **points[value])
        if options.faults:
            for name in names(axis, size, options.only):
                print(f"{axis} {value:>5}  {name:<26} {apart(faults, name, size):9,} page faults", flush=True)
        elif (axis, value) not in known:
            for row in measure(axis, value, size, options.rounds, options.keep_memory, options.only):
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                spread = f"[{row['low']:.2f}, {row['high']:.2f}]"
                cost = (
                    f"{row['ratio']:6.2f}x of {row.get('by_hand', 1):5.2f}  {spread:<16} {row['seconds'] * 1e3:9.1f} ms"
                )
                print(
                    f"{axis} {value:>5}  {row['method']:<26} {cost}  {row['memory']:5.2f}x  {row['mib']:7.0f} MiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
