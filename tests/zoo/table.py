"""Architecture x method: what each cell of the table must show before it says "ok"."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from specimens import BATCH, WORDS, Specimen, targets
from torch import Tensor, nn

import sparring as sp
from sparring import recipes
from sparring.passes.step import Step

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "zoo.md"
RADIUS = 0.5

# name of the column -> (recipe, where it acts, further words)
METHODS: dict[str, tuple[Callable[..., sp.Objective], str, dict[str, Any]]] = {
    "adversarial_training": (recipes.adversarial_training, "site", {"ball": sp.L2(RADIUS)}),
    "vat": (recipes.vat, "site", {"ball": sp.L2(RADIUS)}),
    "smart": (recipes.smart, "site", {"ball": sp.L2(RADIUS), "step_size": None, "start": 1e-2}),
    "salt": (recipes.salt, "site", {"ball": sp.L2(RADIUS), "start": 1e-2}),
    "free_lb": (recipes.free_lb, "site", {"ball": sp.L2(RADIUS), "steps": 2}),
    "r_drop": (recipes.r_drop, "nowhere", {}),
    "attention_at": (recipes.attention_at, "scores", {"ball": sp.L2(RADIUS)}),
    "adversarial_dropout": (recipes.adversarial_dropout, "masks", {"ball": sp.Flips(0.5)}),
}


def build(specimen: Specimen, method: str, **options: Any) -> sp.Objective:
    """The objective of a cell."""
    recipe, where, words = METHODS[method]
    places: dict[str, Any] = {"site": specimen.site, "scores": sp.Scores, "masks": lambda: sp.Mask(keep=1.0)}
    at = {} if where == "nowhere" else {"at": places[where]()}
    more = {"outputs": specimen.options["outputs"]} if "outputs" in specimen.options else {}
    if specimen.valid is not None:
        more["valid"] = lambda inputs: inputs != 0
    return recipe(specimen.model(), sp.cross_entropy, **at, **(words | more | options))


def batch(specimen: Specimen, size: int = BATCH, side: str = "right") -> tuple[Any, Tensor]:
    inputs = specimen.inputs(size, side)
    if specimen.options.get("square"):
        return inputs, torch.arange(size)
    if "tokens" in specimen.options:
        labels = torch.randint(5, WORDS, (size, 6), generator=torch.Generator().manual_seed(3))
        return inputs, labels.masked_fill(inputs["decoder_attention_mask"] == 0, -100)
    return inputs, targets(size)


def play(objective: sp.Objective, inputs: Any, labels: Any) -> tuple[Tensor, list[Tensor]]:
    """The losses of one step, summed, and the gradients, from a fixed seed; leaves `.grad` empty."""
    model = objective.model
    torch.manual_seed(7)
    np.random.seed(7)  # SpecAugment draws from numpy
    total: Any = 0.0
    for loss in objective.steps(inputs, labels):
        loss.backward()
        total = total + loss.detach()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return total, gradients


def traces(model: nn.Module) -> list[Any]:
    """All that a pass could leave behind on a model."""
    found: list[Any] = [torch.get_default_dtype(), torch.is_grad_enabled()]
    for module in model.modules():
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
        flags = [
            getattr(module, name, None)
            for name in ("training", "track_running_stats", "momentum", "n_power_iterations")
        ]
        found.append((hooks, flags, "forward" in module.__dict__, id(getattr(module, "config", None))))
    return found


def close(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]], what: str) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5, msg=lambda m: f"{what}: loss\n{m}")
    scale = max(float(g.abs().max()) for g in other[1])
    for a, b in zip(one[1], other[1]):
        torch.testing.assert_close(
            a, b, rtol=1e-3, atol=1e-4 * max(scale, 1e-2), msg=lambda m: f"{what}: gradient\n{m}"
        )


def in_the_ball(specimen: Specimen, step: Step, ball: Any) -> None:
    """What was placed last lies in its ball, and is exactly zero on padding."""
    assert step.last is not None
    for slots in step.last.slots.values():
        for slot in slots:
            if slot.placed is None or not isinstance(ball, sp.L2):
                continue
            norms = slot.placed.detach().flatten(1).norm(dim=1)
            assert norms.max() <= RADIUS * (1 + 1e-4), f"{slot.name} left its ball"
            if specimen.pads:
                assert slot.valid is not None, f"{slot.name}: padding was not found"
                hidden = ~slot.valid.expand_as(slot.placed)
                assert (slot.placed[hidden] == 0).all(), f"{slot.name} moved padding"


def checks(specimen: Specimen, method: str, spy: Callable[[], list[Step]]) -> None:
    """Weight zero is plain to the bit; replay changes nothing; nothing stays behind; the ball binds and padding is left alone."""
    model = specimen.model()
    before = traces(model)
    inputs, labels = batch(specimen)
    objective = build(specimen, method)
    found = play(objective, inputs, labels)
    step = spy()[-1]
    assert torch.isfinite(found[0]), "the loss is not finite"
    assert all(torch.isfinite(g).all() for g in found[1]), "a gradient is not finite"
    assert any((g != 0).any() for g in found[1]), "no parameter got a gradient"
    in_the_ball(specimen, step, METHODS[method][2].get("ball"))
    close(found, play(build(specimen, method, replay=False), inputs, labels), "replay")
    if method != "r_drop":
        zero = play(
            build(specimen, method, weight=0.0, **({"proximal_weight": 0.0} if method == "smart" else {})),
            inputs,
            labels,
        )
        more = {k: v for k, v in specimen.options.items() if k == "outputs"}
        valid = None if specimen.valid is None else (lambda given: given != 0)
        plain = play(sp.Objective(model, sp.cross_entropy, valid=valid, **more), inputs, labels)
        assert torch.equal(zero[0], plain[0]), "weight 0 is not the plain loss to the bit"
        assert all(map(torch.equal, zero[1], plain[1])), "weight 0 has other gradients than the plain loss"
    assert traces(model) == before, "something stayed behind on the model"


def verdict(specimen: Specimen, method: str, spy: Callable[[], list[Step]]) -> str:
    """ "ok", or the sentence with which sparring refuses. Anything else is an error of ours and raises."""
    try:
        checks(specimen, method, spy)
    except (ValueError, TypeError, RuntimeError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        specimen.model().zero_grad(set_to_none=True)
        if "/sparring/" not in last:
            raise
        return " ".join(str(error).split("; near names")[0].split(", only ")[0].split())
    return "ok"


def page(verdicts: dict[str, dict[str, str]]) -> str:
    """The page of the documentation: one row an architecture, refusals as footnotes."""
    notes: dict[str, int] = {}
    rows = []
    for name, cells in verdicts.items():
        shown = []
        for method in METHODS:
            said = cells[method]
            shown.append("ok" if said == "ok" else f"[{notes.setdefault(said, len(notes) + 1)}]")
        rows.append(f"| {name} | " + " | ".join(shown) + " |")
    head = "| | " + " | ".join(f"`{m}`" for m in METHODS) + " |\n|---|" + ":-:|" * len(METHODS)
    foot = "\n".join(f"{number}. {said}" for said, number in notes.items())
    return f"""# The zoo

Architectures that are not ours, tiny and with random weights, against the methods: additive ones at the embeddings (at the input of models
of images, behind the feature encoder of models of sound), `attention_at` at all attention scores, `adversarial_dropout` at all dropout masks. **ok** means: the loss and all
gradients are finite; with weight 0 they are those of the plain loss to the bit; prefix replay changes nothing; the perturbation lies in its
ball and is zero on padding; nothing stays behind on the model. A number stands for the sentence with which the objective refuses.

The table is made by `python tests/zoo/make_page.py` and checked by the tests, cell by cell.

{head}
{chr(10).join(rows)}

Refusals:

{foot}
"""


def read_page() -> dict[str, dict[str, str]]:
    """The table as the documentation has it."""
    text = PAGE.read_text()
    notes = {}
    for line in text.partition("Refusals:")[2].splitlines():
        number, dot, said = line.partition(". ")
        if dot and number.isdigit():
            notes[f"[{number}]"] = said
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(parts) == len(METHODS) + 1 and parts[0]:
            found[parts[0]] = {m: notes.get(said, said) for m, said in zip(METHODS, parts[1:])}
    return found
