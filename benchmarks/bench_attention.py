"""Attention AT and iAT against a plain step, Word iAT at a large vocabulary, and the largest tensor of an iAT step.

    PYTHONPATH=src python benchmarks/bench_attention.py

The paper's model (BiLSTM of 128 per direction, additive attention), batch 32, forward and backward. "three passes" is what the
public implementations do: a pass for the gradient (through the whole model), the clean pass and the perturbed pass.
"""

import argparse
import resource
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparring as sp
from harness import interleave
from sparring.lab.models.birnn import SingleSequence
from sparring.lab.training.memory import keep_memory

BATCH, LIMIT = 32, 1.10


def batch(words: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sentences of length/2 to length words, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, words, (BATCH, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (BATCH, 1), generator=generator)
    lengths[0] = length
    return tokens * (torch.arange(length) < lengths), torch.randint(2, (BATCH,), generator=generator)


def three_passes(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Attention AT without replay: every pass runs the encoder."""
    site = sp.Scores("attention")
    nudge = torch.zeros(tokens.shape, requires_grad=True)
    inner = sp.cross_entropy(sp.perturbed_call(model, {site: nudge}, tokens), targets).sum()
    (gradient,) = torch.autograd.grad(inner, nudge)
    shift = 5.0 * gradient / gradient.norm(dim=-1, keepdim=True)
    moved = sp.cross_entropy(sp.perturbed_call(model, {site: shift}, tokens), targets).mean()
    return sp.cross_entropy(model(tokens), targets).mean() + moved


def compare(length: int, rounds: int) -> None:
    """Steps on the scores at one sentence length."""
    torch.manual_seed(0)
    model = SingleSequence(5000, 300, 256)
    tokens, targets = batch(5000, length)

    def step(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            model.zero_grad(set_to_none=True)
            loss().backward()

        return work

    def recipe(build: Callable[..., sp.Objective], **options: Any) -> Callable[[], None]:
        objective = build(model, sp.cross_entropy, **options)
        return step(lambda: objective(tokens, targets))

    scores, ball = sp.Scores("attention"), sp.L2(5.0)
    limited = {
        "attention_at": recipe(sp.recipes.attention_at, at="attention"),
        "attention_iat (row_sum)": recipe(sp.recipes.attention_iat, at="attention"),
        "attention_iat (per_word)": recipe(sp.recipes.attention_iat, at="attention", reading="per_word"),
        "attention_noise": recipe(sp.recipes.attention_noise, at="attention"),
    }
    free = {
        "vat at the scores": recipe(sp.recipes.vat, at=scores, ball=ball),
        "salt at the scores": recipe(sp.recipes.salt, at=scores, ball=ball),
        "attention AT, three passes": step(lambda: three_passes(model, tokens, targets)),
    }
    plain = ("plain step", step(lambda: sp.cross_entropy(model(tokens), targets).mean()))
    print(f"T = {length}, batch {BATCH}, BiLSTM 2 x 128")
    for name, ratio in interleave(plain, limited | free, rounds=rounds, repeats=2).items():
        print("  " + ratio.row(LIMIT if name in limited else None))


def vocabulary(size: int, rounds: int) -> None:
    """Word iAT with the neighbour search against Word AT, after the first search and while every word is looked for again."""
    torch.manual_seed(0)
    model = SingleSequence(size, 300, 256)
    tokens, targets = batch(size, 40)

    def recipe(objective: sp.Objective) -> Callable[[], None]:
        def work() -> None:
            model.zero_grad(set_to_none=True)
            objective(tokens, targets).backward()

        return work

    word_at = sp.recipes.adversarial_training(model, sp.cross_entropy, at=sp.Words("embedding"), ball=sp.L2(5.0))
    variants = {
        "word_iat, 10 neighbours, refresh 100": recipe(sp.recipes.word_iat(model, sp.cross_entropy)),
        "word_iat, 10 neighbours, refresh 1": recipe(sp.recipes.word_iat(model, sp.cross_entropy, refresh=1)),
        "word_iat, whole vocabulary": recipe(sp.recipes.word_iat(model, sp.cross_entropy, neighbours=None)),
    }
    print(f"|V| = {size:,}, T = 40")
    for ratio in interleave(("word_at", recipe(word_at)), variants, rounds=rounds, repeats=1).values():
        print("  " + ratio.row())


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.entries = max([self.entries, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result


def memory(length: int) -> None:
    """The largest tensor of an iAT step on a long text, against what the T x T differences would take."""
    torch.manual_seed(0)
    model = SingleSequence(5000, 300, 256)
    tokens, targets = batch(5000, length)
    objective = sp.recipes.attention_iat(model, sp.cross_entropy, at="attention")
    with torch.no_grad():
        embedded = model.embedding(tokens)
    slot = sp.perturbed_call(model, {sp.Scores("attention"): {}}, tokens, record=True)[1][sp.Scores("attention")][
        "attention"
    ]
    player = objective.terms[0].by
    with Largest() as seen:
        player._spell(sp.sites.Slot("attention", slot.detach(), tokens != 0), torch.randn_like(slot))
    objective(tokens, targets).backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"T = {length}: iAT's own arithmetic holds at most {seen.entries:,} numbers (B x T = {tokens.numel():,}, "
        f"B x T x T = {BATCH * length * length:,}; word vectors {embedded.numel():,}); peak memory {peak:,.0f} MiB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_memory()
    for length in (40, 200):
        compare(length, rounds)
    vocabulary(50_000, max(3, rounds // 2))
    memory(800)
