"""The masked recurrence against the composite definition: values, every gradient, double backward, work not done."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparring.nn.recurrent import fused as recurrent_native
from sparring.nn.recurrent import plain as recurrent_plain
from sparring.nn.recurrent.composite import GATES, composite
from sparring.nn.recurrent.function import INPUTS, recurrence
from sparring.nn.recurrent.native.build import library
from sparring.nn.recurrent.projection import FEW, shared_projection, shared_projections
from sparring.nn.recurrent.steps import Steps

KERNELS = ["plain", "native"]


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native" and library() is None:
        pytest.skip("no C compiler: the native kernel cannot be built here")
    monkeypatch.setenv("SPARRING_NATIVE", "1" if request.param == "native" else "0")
    return request.param


def arguments(kind: str, sizes: list[int], inputs: int, size: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """x, w_ih, bias, w_hh, bias_hh, h, c, mask, all asking for a gradient."""
    g = torch.Generator().manual_seed(seed)
    gates, batch = GATES[kind] * size, sizes[0]
    shapes = [
        (sum(sizes), inputs),
        (gates, inputs),
        (gates,),
        (gates, size),
        (gates,),
        (batch, size),
        (batch, size),
        (batch, size),
    ]
    scale = [1.0, 0.5, 0.5, size**-0.5, 0.5, 1.0, 1.0, 1.0]
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64) * s for shape, s in zip(shapes, scale)]
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def compare(
    kind: str, sizes: list[int], reverse: bool, inputs: int, size: int, dtype: torch.dtype, seed: int = 0
) -> None:
    """Outputs and all gradients, relative to the largest entry of each tensor."""
    steps, tolerance = Steps.of(sizes, reverse), 1e-10 if dtype == torch.float64 else 1e-5
    ours = arguments(kind, sizes, inputs, size, dtype, seed)
    oracle = [tensor.detach().double().requires_grad_() for tensor in ours]
    mine, truth = recurrence(kind, steps, *ours), composite(kind, steps, *oracle)
    upstream = [torch.randn_like(t) for t in truth]
    gradients = torch.autograd.grad(mine, ours, [u.to(dtype) for u in upstream])
    expected = torch.autograd.grad(truth, oracle, upstream)
    for name, a, b in zip(("out", "h", "c", *INPUTS), (*mine, *gradients), (*truth, *expected)):
        assert a.dtype == dtype
        assert (a.double() - b).detach().abs().max() <= tolerance * b.detach().abs().max().clamp_min(1), name


@pytest.mark.parametrize("inputs", [3, FEW])  # few join the recurrent product, more are projected before it
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", list(GATES))
def test_every_value_and_gradient_equals_the_composite(kernel: str, kind: str, dtype: torch.dtype, inputs: int) -> None:
    for sizes, reverse in itertools.product(([4] * 6, [5, 5, 3, 3, 1], [1], [13] * 2), (False, True)):
        compare(kind, sizes, reverse, inputs, size=19, dtype=dtype)


@given(
    kind=st.sampled_from(list(GATES)),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6).map(lambda s: sorted(s, reverse=True)),
    reverse=st.booleans(),
    inputs=st.integers(1, FEW + 2),
    size=st.integers(1, 37),
    native=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_any_shape(kind: str, sizes: list[int], reverse: bool, inputs: int, size: int, native: bool, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARRING_NATIVE", str(int(native)))
        compare(kind, sizes, reverse, inputs, size, torch.float32, seed)


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("inputs", [2, FEW])
@pytest.mark.parametrize("left_out", [(), ("bias",), ("bias_hh",), ("bias", "bias_hh"), ("mask",)])
def test_each_gradient_alone_and_with_parts_left_out(
    kernel: str, kind: str, inputs: int, left_out: tuple[str, ...]
) -> None:
    steps = Steps.of([4, 4, 3])
    given = dict(zip(INPUTS, arguments(kind, [4, 4, 3], inputs, 9, torch.float32)))
    given |= dict.fromkeys(left_out)
    oracle = {k: None if v is None else v.detach().double().requires_grad_() for k, v in given.items()}
    truth = composite(kind, steps, *oracle.values())[0].square().sum()
    for name, tensor in given.items():
        if tensor is None or (name == "c" and kind != "lstm"):
            continue
        (alone,) = torch.autograd.grad(recurrence(kind, steps, *given.values())[0].square().sum(), tensor)
        (expected,) = torch.autograd.grad(truth, oracle[name], retain_graph=True)
        assert (alone.double() - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1), name


def test_wide_layers_use_several_slices_and_panels(kernel: str) -> None:
    compare("lstm", [7] * 3, False, inputs=4, size=531, dtype=torch.float32)


def test_threads_share_a_batch(kernel: str) -> None:
    torch.set_num_threads(3)
    try:
        compare("lstm", [40] * 20 + [9] * 5, False, inputs=2, size=64, dtype=torch.float32)
        compare("gru", [40] * 20 + [9] * 5, True, inputs=2, size=64, dtype=torch.float32)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", list(GATES))
def test_finite_differences_of_the_double_backward(kind: str) -> None:
    steps = Steps.of([3, 2])
    tensors = arguments(kind, [3, 2], 2, 3, torch.float64)

    def last(*values: Tensor) -> Tensor:
        return recurrence(kind, steps, *values)[0]

    assert torch.autograd.gradcheck(last, tensors)
    assert torch.autograd.gradgradcheck(last, tensors, atol=1e-4 if kind == "relu" else 1e-6)


def test_without_a_graph_the_values_are_the_same(kernel: str) -> None:
    steps, tensors = Steps.of([4, 4, 2]), arguments("lstm", [4, 4, 2], 3, 8, torch.float32)
    with torch.no_grad():
        quiet = recurrence("lstm", steps, *tensors)
    for a, b in zip(quiet, recurrence("lstm", steps, *tensors)):
        assert torch.equal(a, b)
        assert not a.requires_grad


def test_a_retained_graph_gives_the_same_gradient_twice_and_a_spent_one_says_so(kernel: str) -> None:
    steps, tensors = Steps.of([4] * 5), arguments("lstm", [4] * 5, 3, 8, torch.float32)
    out = recurrence("lstm", steps, *tensors)[0].sum()
    first = torch.autograd.grad(out, tensors, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(out, tensors, allow_unused=True)
    for a, b in zip(first, second):
        assert a is b is None or torch.equal(a, b)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(out, tensors, allow_unused=True)


@pytest.mark.parametrize(
    ("ask", "work"),
    [
        (["mask"], (False, False)),
        (["mask", "h"], (False, False)),
        (["x", "mask"], (True, False)),
        (["w_ih"], (True, False)),
        (["w_hh"], (True, True)),
    ],
)
def test_no_gradient_work_that_nobody_asked_for(
    kernel: str, monkeypatch: pytest.MonkeyPatch, ask: list[str], work: tuple[bool, bool]
) -> None:
    module = recurrent_native if kernel == "native" else recurrent_plain
    original, seen = module.backward, []

    def spy(*args: object, gates: bool, weights: bool, **kwargs: object) -> object:
        seen.append((gates, weights))
        return original(*args, gates=gates, weights=weights, **kwargs)

    monkeypatch.setattr(module, "backward", spy)
    tensors = arguments("lstm", [4] * 5, 3, 8, torch.float32)
    wanted = [tensors[INPUTS.index(name)] for name in ask]
    torch.autograd.grad(recurrence("lstm", Steps.of([4] * 5), *tensors)[1].sum(), wanted)
    assert seen == [work]


def test_the_mask_gradient_alone_is_the_same_gradient(kernel: str) -> None:
    steps, tensors = Steps.of([4] * 5), arguments("lstm", [4] * 5, 3, 8, torch.float32)
    everything = torch.autograd.grad(recurrence("lstm", steps, *tensors)[1].sum(), tensors)
    alone = torch.autograd.grad(recurrence("lstm", steps, *tensors)[1].sum(), [tensors[-1]])
    assert torch.equal(everything[-1], alone[0])


def test_not_a_number_stays_in_its_example(kernel: str) -> None:
    tensors = [t.detach() for t in arguments("lstm", [3] * 4, 2, 8, torch.float32)]
    tensors[0][0, 0] = float("nan")
    out = recurrence("lstm", Steps.of([3] * 4), *tensors)[0].view(4, 3, 8)
    assert out[:, 0].isnan().all()
    assert out[:, 1:].isfinite().all()


def test_saturated_gates_stay_finite(kernel: str) -> None:
    tensors = arguments("lstm", [3] * 4, 2, 8, torch.float32)
    tensors[0].data.mul_(1e6)
    out = recurrence("lstm", Steps.of([3] * 4), *tensors)[0]
    gradients = torch.autograd.grad(out.sum(), [tensors[0], tensors[3], tensors[-1]])
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("kind", list(GATES))
def test_a_ready_projection_is_an_input_like_any_other(kernel: str, kind: str) -> None:
    steps, tensors = Steps.of([4, 4, 2]), arguments(kind, [4, 4, 2], 3, 8, torch.float32)
    x, w_ih, bias, *rest = tensors
    projected = torch.nn.functional.linear(x, w_ih, bias)
    apart, whole = recurrence(kind, steps, projected, None, None, *rest), recurrence(kind, steps, *tensors)
    for a, b in zip(apart[:2], whole[:2]):
        torch.testing.assert_close(a, b)
    upstream = torch.randn_like(whole[0])
    gradients = [torch.autograd.grad(result[0], tensors[:5], upstream) for result in (apart, whole)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_passes_share_a_projection_and_its_backward_and_notice_changes() -> None:
    x, w = torch.randn(6, 20, requires_grad=True), torch.randn(8, 20, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    with shared_projections({}):
        first = shared_projection(x, x, w, bias, bias)
        assert first is shared_projection(x, x, w, bias, bias)
        torch.testing.assert_close(first, x @ w.T + 2 * bias)
        cut = shared_projection(x.detach(), x.detach(), w, bias, bias)
        assert torch.equal(cut, first)
        assert not cut.requires_grad
        assert shared_projection(x * 1, x * 1, w, bias, bias) is None, "another tensor, another projection"
        with torch.no_grad():
            w.mul_(2)
        assert shared_projection(x, x, w, bias, bias) is None
        few = torch.randn(6, 3)
        assert shared_projection(few, few, torch.randn(8, 3), None, None) is None
    assert shared_projection(x, x, w, bias, bias) is None
