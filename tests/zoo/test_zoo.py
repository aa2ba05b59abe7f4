"""Every architecture of the zoo x method does what the documentation's table says."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytest.importorskip("peft", reason="the dev extra is not installed")

from specimens import SPECIMENS, Specimen
from table import METHODS, batch, build, close, play, read_page, verdict

import sparring as sp
from sparring.passes import call

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
FAST = ("vat", "attention_at", "adversarial_dropout")
BY_NAME = {specimen.name: specimen for specimen in SPECIMENS}
SOME = ("bert", "xlnet", "llama", "gemma2", "t5", "swin", "wav2vec2", "bert + LoRA", "nn.TransformerEncoder, time-major", "nn.GRU, 2 layers, both ways")  # fmt: skip


def cells() -> list[Any]:
    return [
        pytest.param(specimen, method, id=f"{specimen.name}-{method}", marks=() if method in FAST else pytest.mark.long)
        for specimen in SPECIMENS
        for method in METHODS
    ]


@pytest.mark.parametrize(("specimen", "method"), cells())
def test_each_cell_is_as_documented(specimen: Specimen, method: str, steps: list) -> None:
    said = read_page()[specimen.name][method]
    assert verdict(specimen, method, lambda: steps) == said


def test_the_page_has_every_row_and_thirty_architectures() -> None:
    rows = read_page()
    assert list(rows) == [specimen.name for specimen in SPECIMENS]
    assert sum(not name.startswith("nn.") for name in rows) >= 30
    assert all(cells["vat"] == "ok" for cells in rows.values())


def documented(method: str) -> list[str]:
    return [name for name, said in read_page().items() if said[method] == "ok"]


def some(method: str, names: tuple[str, ...] = SOME) -> list[Any]:
    """Rows that are ok for a method: a few in every run, the rest in the long one."""
    return [pytest.param(BY_NAME[n], id=n, marks=() if n in names else pytest.mark.long) for n in documented(method)]


def still(model: nn.Module) -> nn.Module:
    """A copy without noise of its own."""
    return copy.deepcopy(model).eval()


def own(specimen: Specimen, method: str, model: nn.Module, **options: Any) -> sp.Objective:
    objective = build(specimen, method, **options)
    if model is specimen.model():
        return objective
    twin = Specimen(**{**specimen.__dict__, "name": f"{specimen.name} (copy)", "build": lambda: model})
    twin.__dict__["model"] = lambda: model
    return build(twin, method, **options)


@pytest.mark.parametrize("specimen", [s for s in some("adversarial_training") if s.values[0].pads])
def test_the_side_of_the_padding_does_not_matter_to_promises(specimen: Specimen, steps: list) -> None:
    for side in ("left", "right"):
        inputs, labels = batch(specimen, side=side)
        play(build(specimen, "vat"), inputs, labels)
        for slots in steps[-1].last.slots.values():
            for slot in slots:
                assert slot.valid is not None
                assert (slot.placed[~slot.valid.expand_as(slot.placed)] == 0).all()
                assert slot.placed.flatten(1).norm(dim=1).max() <= 0.5 * (1 + 1e-4)


@pytest.mark.parametrize("specimen", some("adversarial_training"))
def test_an_example_does_not_depend_on_its_company(specimen: Specimen) -> None:
    """A batch of one gives the loss that the example has in a batch of three."""
    if specimen.options.get("square") or any(isinstance(m, nn.BatchNorm2d) for m in specimen.model().modules()):
        pytest.skip("its classes are the batch, or examples meet in batch norm")
    model = still(specimen.model())
    inputs, labels = batch(specimen)
    losses = [own(specimen, "adversarial_training", model)(*rows(inputs, labels, slice(k, k + 1))) for k in range(3)]
    whole = own(specimen, "adversarial_training", model)(inputs, labels)
    torch.testing.assert_close(torch.stack(losses).mean(), whole, rtol=2e-3, atol=1e-4)


def rows(inputs: Any, labels: Tensor, which: slice) -> tuple[Any, Tensor]:
    if isinstance(inputs, dict):
        return {key: value[which] for key, value in inputs.items()}, labels[which]
    if isinstance(inputs, tuple):
        return tuple(value[which] for value in inputs), labels[which]
    return inputs[which], labels[which]


@pytest.mark.parametrize("specimen", some("vat"))
def test_without_targets(specimen: Specimen) -> None:
    inputs, _ = batch(specimen)
    torch.manual_seed(0)
    loss = build(specimen, "vat")(inputs)
    loss.backward()
    assert torch.isfinite(loss)
    specimen.model().zero_grad(set_to_none=True)


# transformers' own: they mask with float32's smallest number, or write float32 into a bfloat16 tensor.
NOT_UNDER_AUTOCAST = ("deberta", "xmod")


@pytest.mark.parametrize("specimen", some("vat"))
def test_bfloat16(specimen: Specimen) -> None:
    """Autocast changes rounding, not the number: close to float32, and the ball still binds."""
    model = still(specimen.model())
    inputs, labels = batch(specimen)
    if specimen.name in NOT_UNDER_AUTOCAST:
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="BFloat16"):
            call(model, inputs)
        return
    full = play(own(specimen, "adversarial_training", model), inputs, labels)[0]
    objective = own(specimen, "adversarial_training", model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = play(objective, inputs, labels)[0]
    torch.testing.assert_close(half, full, rtol=0.1, atol=0.1)
    assert objective.diagnostics["adversarial_training/norm"] <= 0.5 * (1 + 1e-3)


@pytest.mark.parametrize("specimen", some("adversarial_training"))
def test_accumulation(specimen: Specimen) -> None:
    """Two uneven batches with the number of items of both give the gradients of the whole."""
    if specimen.options.get("square") or any(isinstance(m, nn.BatchNorm2d) for m in specimen.model().modules()):
        pytest.skip("its classes are the batch, or examples meet in batch norm")
    model = still(specimen.model())
    inputs, labels = batch(specimen)
    whole = play(own(specimen, "adversarial_training", model), inputs, labels)
    objective = own(specimen, "adversarial_training", model)
    total: Any = 0.0
    for which in (slice(0, 1), slice(1, 3)):
        loss = objective(*rows(inputs, labels, which), items=3)
        loss.backward()
        total = total + loss.detach()
    close(
        (total, [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]), whole, "accumulation"
    )


CHECKPOINTED = ("bert", "llama", "gemma2", "vit", "wav2vec2", "bart")


@pytest.mark.parametrize("method", ["vat", "attention_at", "adversarial_dropout"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_gradient_checkpointing(name: str, method: str) -> None:
    if method not in ("vat",) and name not in documented(method):
        pytest.skip("refused")
    specimen = BY_NAME[name]
    inputs, labels = batch(specimen)
    plain = play(own(specimen, method, copy.deepcopy(specimen.model())), inputs, labels)
    model: Any = copy.deepcopy(specimen.model())
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    close(play(own(specimen, method, model), inputs, labels), plain, "checkpointing")
