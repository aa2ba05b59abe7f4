"""The promises of an objective, each tried on every method and scene."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from methods import Method, cases
from scenes import SCENES, Scene
from sparring.passes.one import Pass, call

ALL = pytest.mark.parametrize(("method", "scene"), cases())
BALLS = pytest.mark.parametrize(("method", "scene"), cases(lambda m: m.ball is not None))


def gradients(objective: sp.Objective, *batch: Any) -> tuple[Tensor, list[Tensor]]:
    loss = objective(*batch)
    found = torch.autograd.grad(loss, list(objective.model.parameters()), allow_unused=True, materialize_grads=True)
    return loss.detach(), list(found)


def plain(scene: Scene, model: nn.Module, inputs: Any, targets: Tensor, valid: Any) -> Tensor:
    outputs = call(model, inputs)
    outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
    mask = valid["outputs"] if isinstance(valid, dict) else None
    return scene.loss(outputs, targets, valid=mask).mean()


def marks(model: nn.Module) -> list[Any]:
    """Everything a pass could leave on a module."""
    return [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), "forward" in m.__dict__, m.training,
         getattr(m, "track_running_stats", None), getattr(m, "momentum", None))
        for m in model.modules()
    ]  # fmt: skip


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pass]]:
    """Collects every pass that runs."""
    seen: list[Pass] = []
    run = Pass.run

    def spy(self: Pass, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return run(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Pass, "run", spy)
        yield seen


def placed(one: Pass) -> list[tuple[Tensor, Tensor | None]]:
    return [(s.placed.detach(), s.valid) for slots in one.slots.values() for s in slots if s.placed is not None]


@ALL
def test_leaves_grad_mode_and_hooks_alone(method: Method, scene: Scene) -> None:
    model, *batch = scene.setup()
    objective = method.build(scene, model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    kept = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    before, fast = marks(model), torch.backends.mha.get_fastpath_enabled()
    loss = objective(*batch)
    assert loss.dim() == 0
    assert marks(model) == before
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(p.grad is g and torch.equal(g, copy) for p, (g, copy) in zip(model.parameters(), kept, strict=True))
    loss.backward()
    assert marks(model) == before
    assert any(not torch.equal(p.grad, copy) for p, (_, copy) in zip(model.parameters(), kept, strict=True))


@ALL
@pytest.mark.parametrize("fatal_call", [1, 2, 3])
def test_leaves_nothing_behind_when_the_forward_pass_raises(method: Method, scene: Scene, fatal_call: int) -> None:
    model, *batch = scene.setup()
    objective = method.build(scene, model)
    last = list(model.modules())[-1]
    calls = 0

    def explode(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fatal_call:
            raise ZeroDivisionError("boom")

    handle = last.register_forward_pre_hook(explode)
    before = marks(model)
    with contextlib.suppress(ZeroDivisionError):
        for _ in range(3):
            objective(*batch)
    assert calls >= fatal_call
    assert marks(model) == before
    handle.remove()


@pytest.mark.parametrize(("method", "scene"), [c for c in cases() if c.values[1].name == "convnet"])
def test_batch_norm_statistics_move_on_the_clean_pass_only(method: Method, scene: Scene) -> None:
    model, *batch = scene.setup()
    model.dropout.p = 0.0
    twin = scene.model().to(torch.float64)
    twin.load_state_dict(model.state_dict())
    objective = method.build(
        scene, model, radius=1e-9
    )  # the moved point of FreeLB's first pass is the clean one, nearly
    loss = objective(*batch)
    call(twin.train(), batch[0])
    loss.backward()
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8, msg=name)


@BALLS
def test_the_radius_binds_and_padding_stays_zero(method: Method, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *batch = scene.setup()
    objective = method.build(scene, model, radius=0.4)
    for _ in range(2):
        with watched(monkeypatch) as passes:
            objective(*batch).backward()
        final = [one for one in passes if placed(one)]
        # the walk back of a finite-difference follower probes beside its points during backward, and returns none of them
        final = final[: len(final) // 2 + 1] if method.name == "salt-finite" else final
        assert final
        for delta, valid in placed(final[-1]):
            assert bool((method.ball(0.4).norm(delta) <= 0.4 * (1 + 1e-6)).all())
            if valid is not None:
                assert bool((delta[~valid.expand_as(delta)] == 0).all())
                assert not bool(valid.all()), "the scene has no padding to look at"


@BALLS
def test_examples_do_not_influence_each_other(method: Method, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, targets, valid = scene.setup()
    model.eval()  # batch statistics off
    _, others, other_targets, _ = scene.setup(seed=1)

    def mixed(a: Any, b: Any) -> Any:
        if isinstance(a, dict):
            return {k: a[k] if k == "attention_mask" else mixed(a[k], b[k]) for k in a}
        if isinstance(a, tuple):
            return tuple(mixed(x, y) for x, y in zip(a, b, strict=True))
        return torch.cat([a[:2], b[2:]])

    found = []
    for batch in ((inputs, targets, valid), (mixed(inputs, others), mixed(targets, other_targets), valid)):
        objective = method.build(scene, model)
        torch.manual_seed(3)
        with watched(monkeypatch) as passes:
            for loss in objective.steps(*batch):
                loss.backward()
        found.append([[d[:2] for d, _ in placed(one)] for one in passes])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scene", SCENES.values(), ids=list(SCENES))
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_shared_noise_is_exact(scene: Scene, late: bool) -> None:
    model, *batch = scene.setup()
    site = sp.Output(scene.late if late else scene.at)
    objective = sp.Objective(model, scene.loss, sp.Term(site, sp.Noise(sp.L2(1.0)), scene.penalty))
    step = objective.begin(*batch, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros_like(slot.value) for slot in step.slots(site)]}
    for replay in (True, False):
        assert torch.equal(step.run(zeros, replay=replay), step.outputs)
    fresh = sp.nn.randomness.fresh(step.devices)
    once, again = step.run(zeros, noise=fresh), step.run(zeros, noise=fresh)
    assert torch.equal(once, again)
    assert not torch.equal(once, step.outputs)


@ALL
def test_zero_weight_is_the_plain_loss_bit_for_bit(method: Method, scene: Scene) -> None:
    options = {"proximal_weight": 0.0} if method.name == "smart" else {}
    _check_plain(scene, lambda model: method.build(scene, model, weight=0.0, **options))


@BALLS
def test_zero_radius_is_the_plain_loss_bit_for_bit(method: Method, scene: Scene) -> None:
    options = {"proximal_weight": 0.0} if method.name == "smart" else {}
    _check_plain(scene, lambda model: method.build(scene, model, radius=0.0, **options))


def _check_plain(scene: Scene, build: Any) -> None:
    model, *batch = scene.setup(dtype=torch.float32)
    torch.manual_seed(5)
    expected = plain(scene, model, *batch)
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    after = torch.get_rng_state()
    model, *batch = scene.setup(dtype=torch.float32)
    objective = build(model)
    torch.manual_seed(5)
    (loss,) = list(objective.steps(*batch))
    assert torch.equal(loss, expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(map(torch.equal, torch.autograd.grad(loss, list(model.parameters())), expected_gradients))


class Poison(torch.autograd.Function):
    """The identity, whose backward gives NaN for example 0 and zero for example 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        factor = torch.ones(gradient.shape[0], 1, dtype=gradient.dtype)
        factor[0], factor[1] = float("nan"), 0.0
        return gradient * factor


def _looks(method: Method) -> bool:
    """Whether it follows gradients: some player does not just draw."""
    scene = SCENES["mlp"]
    terms = method.build(scene, scene.model()).terms
    return not all(isinstance(term, sp.Term) and term.by is not None and term.by.draws for term in terms)


@pytest.mark.parametrize("method", [c.values[0] for c in cases(lambda m: m.ball is not None and "mlp" in m.scenes and _looks(m)) if c.values[1].name == "mlp"],
                         ids=lambda m: m.name)  # fmt: skip
def test_broken_gradients_leave_the_example_alone(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENES["mlp"]
    model, *batch = scene.setup()

    class Poisoned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Poison.apply(x)

    model.insert(7, Poisoned())
    objective = method.build(scene, model)
    with watched(monkeypatch) as passes:
        losses = []
        for loss in objective.steps(*batch):
            losses.append(float(loss.detach()))
            if "free" in method.name:
                loss.backward()
    assert all(map(torch.isfinite, torch.tensor(losses)))
    final = placed(passes[-1])
    assert all(bool(torch.isfinite(d).all()) for d, _ in final)
    if "free" not in method.name:
        assert all(bool((d[:2] == 0).all()) and bool((d[2:].abs().sum(1) > 0).all()) for d, _ in final)
        counted = [v for k, v in objective.diagnostics.items() if k.endswith("/unperturbed")]
        assert counted == [2.0] * len(counted) != []


@ALL
def test_works_in_bfloat16_autocast(method: Method, scene: Scene) -> None:
    model, *batch = scene.setup(dtype=torch.float32)
    objective = method.build(scene, model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            call(model, batch[0])
        except RuntimeError as error:
            pytest.skip(f"torch cannot run this model in bfloat16 on this processor: {str(error).splitlines()[0][:80]}")
        losses = list(_stepped(objective, batch))
    assert all(torch.isfinite(loss) for loss in losses)
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in objective.model.parameters())
    assert all(loss.dtype == torch.float32 for loss in losses)


def _stepped(objective: sp.Objective, batch: Any) -> Iterator[Tensor]:
    for loss in objective.steps(*batch):
        loss.backward()
        yield loss.detach()


@ALL
def test_same_seed_same_result(method: Method, scene: Scene) -> None:
    results = []
    for _ in range(2):
        model, *batch = scene.setup(dtype=torch.float32)
        torch.manual_seed(11)
        results.append(gradients(method.build(scene, model), *batch))
    assert torch.equal(results[0][0], results[1][0])
    assert all(map(torch.equal, results[0][1], results[1][1]))


@ALL
def test_prefix_replay_changes_nothing(method: Method, scene: Scene) -> None:
    results = []
    for replay in (True, False):
        model, *batch = scene.setup()
        objective = method.build(scene, model, replay=replay)
        torch.manual_seed(11)
        results.append(gradients(objective, *batch))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


@ALL
def test_gradients_accumulate_like_any_loss(method: Method, scene: Scene) -> None:
    model, *batch = scene.setup()
    objective = method.build(scene, model)
    torch.manual_seed(2)
    _, once = gradients(objective, *batch)
    model, *batch = scene.setup()
    objective = method.build(scene, model)
    for _ in range(2):
        model2, *batch2 = scene.setup()
        fresh = method.build(scene, model2)
        fresh.model.load_state_dict(model.state_dict())
        torch.manual_seed(2)
        loss = fresh(*batch2) / 2
        loss.backward()
        for ours, theirs in zip(model.parameters(), model2.parameters(), strict=True):
            if theirs.grad is not None:
                ours.grad = theirs.grad if ours.grad is None else ours.grad + theirs.grad
    for parameter, expected in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter),
            expected,
            rtol=1e-6,
            atol=1e-9,
        )


@pytest.mark.parametrize(("method", "scene"), cases(lambda m: m.label_free))
def test_without_targets_the_label_free_terms_stay(method: Method, scene: Scene) -> None:
    model, inputs, _, valid = scene.setup()
    objective = method.build(scene, model)
    loss = objective(inputs, None, valid)
    loss.backward()
    assert float(loss.detach()) >= 0
    assert "clean_loss" not in objective.diagnostics


@pytest.mark.parametrize(("method", "scene"), cases(lambda m: not m.label_free and m.name != "two-terms"))
def test_supervised_methods_ask_for_targets(method: Method, scene: Scene) -> None:
    model, inputs, _, valid = scene.setup()
    with pytest.raises(ValueError, match="targets are missing"):
        method.build(scene, model)(inputs, None, valid)


@ALL
def test_diagnostics_are_plain_floats(method: Method, scene: Scene) -> None:
    model, *batch = scene.setup()
    objective = method.build(scene, model)
    loss = objective(*batch)
    found = objective.diagnostics
    assert all(type(value) is float for value in found.values())
    assert found["loss"] == pytest.approx(float(loss.detach()))
    assert found["forward_passes"] >= 1
    assert any(key.endswith("/penalty") for key in found)
