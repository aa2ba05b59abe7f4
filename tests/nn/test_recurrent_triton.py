"""The Triton kernels of the masked recurrence, run by Triton's interpreter on the CPU, against the composite definition."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nn.test_recurrent_kernel import arguments, compare
from sparring.nn.recurrent import launched, plain
from sparring.nn.recurrent.composite import GATES, composite
from sparring.nn.recurrent.function import INPUTS, _kernel, recurrence
from sparring.nn.recurrent.steps import Steps

pytestmark = pytest.mark.skipif(not launched.installed(), reason="no Triton here: pip install 'sparring[triton]'")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    launched._kernels.cache_clear()
    yield
    launched._kernels.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", list(GATES))
def test_every_value_and_gradient_equals_the_composite(kind: str, dtype: torch.dtype) -> None:
    assert _kernel(torch.ones(1, dtype=dtype)) is launched
    for sizes, reverse in itertools.product(([3] * 3, [3, 3, 2, 1]), (False, True)):
        compare(kind, sizes, reverse, inputs=3, size=5, dtype=dtype)


def test_a_layer_wider_than_a_block() -> None:
    compare("lstm", [2] * 2, False, inputs=2, size=260, dtype=torch.float32)


@pytest.mark.long  # the interpreter takes a second for what a kernel does in a microsecond
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("left_out", [("bias", "bias_hh"), ("mask",)])
def test_each_gradient_alone_and_with_parts_left_out(kind: str, left_out: tuple[str, ...]) -> None:
    steps = Steps.of([2, 2, 1])
    given = dict(zip(INPUTS, arguments(kind, [2, 2, 1], 3, 4, torch.float32)))
    given |= dict.fromkeys(left_out)
    oracle = {k: None if v is None else v.detach().double().requires_grad_() for k, v in given.items()}
    truth = composite(kind, steps, *oracle.values())[0].square().sum()
    for name, tensor in given.items():
        if tensor is None or (name == "c" and kind != "lstm"):
            continue
        (alone,) = torch.autograd.grad(recurrence(kind, steps, *given.values())[0].square().sum(), tensor)
        (expected,) = torch.autograd.grad(truth, oracle[name], retain_graph=True)
        assert (alone.double() - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1), name


def test_half_precision_computes_in_full_and_stores_in_half() -> None:
    steps, tensors = Steps.of([2, 2]), arguments("lstm", [2, 2], 3, 4, torch.float32)
    low = [t.detach().bfloat16() for t in tensors]
    found = recurrence("lstm", steps, *low)
    truth = composite("lstm", steps, *[t.double() for t in low])
    for a, b in zip(found, truth):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.double(), b, rtol=0.03, atol=0.03)


def test_a_retained_graph_gives_the_same_gradient_twice() -> None:
    steps, tensors = Steps.of([2, 2]), arguments("lstm", [2, 2], 3, 4, torch.float32)
    out = recurrence("lstm", steps, *tensors)[0].sum()
    first = torch.autograd.grad(out, tensors, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(out, tensors, allow_unused=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second))


def test_not_a_number_passes_through() -> None:
    for kind in GATES:
        steps, tensors = Steps.of([2, 2]), [t.detach() for t in arguments(kind, [2, 2], 3, 4, torch.float32)]
        tensors[0][0, 0] = torch.nan
        out = recurrence(kind, steps, *tensors)[0].view(2, 2, 4)
        assert out[:, 0].isnan().all(), kind
        assert out[:, 1].isfinite().all(), kind


VIEWS = {
    "slice",
    "select",
    "view",
    "t",
    "transpose",
    "split",
    "split_with_sizes",
    "expand",
    "as_strided",
    "unsqueeze",
    "detach",
    "alias",
}
MEMORY = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}


class Launches(TorchDispatchMode):
    """Counts what would be launched: operations of torch that compute, and kernels of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        for name in ("forward_step", "backward_step"):
            monkeypatch.setattr(launched._kernels(), name, _Counted(self, getattr(launched._kernels(), name)))

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op._schema.name.removeprefix("aten::")
        self.count += name not in VIEWS | MEMORY
        return op(*args, **(kwargs or {}))


class _Counted:
    def __init__(self, mode: Launches, kernel: Any) -> None:
        self.mode, self.kernel = mode, kernel

    def __getitem__(self, grid: Any) -> Any:
        run = self.kernel[grid]

        def launch(*args: Any, **kwargs: Any) -> None:
            before = self.mode.count
            with torch._C._DisableTorchDispatch():  # what the interpreter does is one launch
                run(*args, **kwargs)
            self.mode.count = before + 1

        return launch


@pytest.mark.parametrize("kind", list(GATES))
def test_a_time_step_is_a_product_and_one_launch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launches(length: int) -> tuple[int, int]:
        steps, tensors = Steps.of([2] * length), arguments(kind, [2] * length, 3, 4, torch.float32)
        with Launches(monkeypatch) as seen:
            out = recurrence(kind, steps, *tensors)[0]
            forward = seen.count
            torch.autograd.grad(out, tensors, torch.ones_like(out), allow_unused=True)
        return forward, seen.count - forward

    short, long = launches(2), launches(5)
    assert [(b - a) / 3 for a, b in zip(short, long)] == [2, 2]


def test_without_the_interpreter_a_cpu_never_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not launched.usable(torch.ones(1))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("SPARRING_NATIVE", "0")
    assert not launched.usable(torch.ones(1))
    assert _kernel(torch.ones(1)) is plain
