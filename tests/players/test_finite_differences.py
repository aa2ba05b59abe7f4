"""Finite-difference SALT on what is not float32, not alike, not as it was: equal to the exact gradient, or refused."""

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils._python_dispatch import TorchDispatchMode

import sparring as sp
from sparring.players import PGD
from sparring.sites import Slot


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    return torch.randn(12, 6, dtype=dtype), torch.arange(12) % 4


def whole(model: nn.Module, unroll: Any, x: Tensor, y: Tensor, bf16: bool = False, **words: Any) -> Tensor:
    objective = sp.recipes.salt(model, sp.cross_entropy, "0", ball=sp.L2(0.5), start=0.1, unroll=unroll, **words)
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = objective(x, y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def gradient(model: nn.Module, unroll: Any, x: Tensor, y: Tensor, **words: Any) -> Tensor:
    """The interaction alone: the gradient of the unrolled objective minus that of the same ascent as a constant."""
    return whole(model, unroll, x, y, **words) - whole(model, False, x, y, **words)


@pytest.mark.parametrize("steps", [1, 2])
def test_under_autocast_the_gradient_is_that_of_full_precision(steps: int) -> None:
    model, (x, y) = network(), batch()
    with torch.no_grad():
        model[2].weight.mul_(3)  # more curvature, so that the interaction is a third of the whole
    exact = whole(model, "autograd", x, y, steps=steps, weight=4.0)
    found = whole(model, "finite_difference", x, y, bf16=True, steps=steps, weight=4.0)
    constant = whole(model, False, x, y, steps=steps, weight=4.0)
    assert float((exact - constant).norm() / exact.norm()) > 0.02
    assert float((found - exact).norm() / exact.norm()) < 0.06, (
        "bfloat16 rounds the leader's own passes by about two per cent"
    )


def test_the_interaction_itself_survives_autocast() -> None:
    """Leader and follower apart: what half the interaction leaves out, twice, is the interaction, whatever the leader's rounding."""
    model, (x, y) = network(), batch()
    with torch.no_grad():
        model[2].weight.mul_(3)
    exact, found = (
        2 * (whole(model, way, x, y, low, interaction=1.0) - whole(model, way, x, y, low, interaction=0.5))
        for way, low in (("autograd", False), ("finite_difference", True))
    )
    assert float((found - exact).norm() / exact.norm()) < 0.2


def test_an_outlier_does_not_drown_the_others() -> None:
    """One example is charged, and pulls, a thousand times as much: the others' derivatives are still the exact ones."""
    words, targets = torch.arange(12).view(12, 1), torch.arange(12) % 4
    charged = torch.ones(12)
    charged[0] = 1000.0

    def penalty(clean: Tensor, perturbed: Tensor) -> Tensor:
        return sp.kl(clean, perturbed) * charged

    def rows(unroll: Any) -> Tensor:
        torch.manual_seed(0)
        table, net = nn.Embedding(12, 6), network()  # a row of its own for every example: each gradient is seen alone
        with torch.no_grad():
            net[2].weight.mul_(3)
        model = nn.Sequential(table, nn.Flatten(), *net)
        model[2:].requires_grad_(False)
        # A raw step: the length of a normalised one does not know what is charged.
        objective = sp.recipes.salt(
            model, sp.cross_entropy, "2", ball=sp.L2(5.0), start=0.3, update="raw", step_size=0.2, unroll=unroll, penalty=penalty
        )  # fmt: skip
        torch.manual_seed(3)
        return torch.autograd.grad(objective(words, targets), table.weight)[0][1:]

    exact, found = (rows(way) - rows(False) for way in ("autograd", "finite_difference"))
    assert float((found - exact).norm() / exact.norm()) < 0.01


class Faint(nn.Module):
    """Some examples hardly count, and pull as little: each a third of the one before."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.3 ** torch.arange(len(x), dtype=x.dtype, device=x.device).unsqueeze(1)


@pytest.mark.parametrize("faint", [False, True])
@pytest.mark.parametrize("words", [{}, {"central": True}, {"box": (-4, 4)}], ids=["one side", "both sides", "in a box"])
def test_examples_that_meet_in_a_batch_norm_are_probed_together(words: dict[str, Any], faint: bool) -> None:
    """Every payoff depends on every perturbation: a probe length for each example would weigh them wrongly."""
    torch.manual_seed(0)
    norm = [Faint()] if faint else []
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *norm, nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()
    x, y = batch(torch.float64)
    box = words.get("box")

    def found(unroll: Any) -> Tensor:
        step = {"update": "raw", "step_size": 5.0} if faint else {"step_size": 0.3}
        player = sp.PGD(sp.L2(0.5, box=box), 2, start=0.1, unroll=unroll, central="central" in words, **step)
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, sp.kl))
        torch.manual_seed(3)
        return torch.cat([g.flatten() for g in torch.autograd.grad(objective(x, y), list(model.parameters()))])

    constant = found(False)
    exact, near = found("autograd") - constant, found("finite_difference") - constant
    assert float(exact.norm() / constant.norm()) > 1e-3
    assert float((near - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize("interaction", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_the_interaction_can_be_damped(unroll: str, interaction: float) -> None:
    model, (x, y) = network(dtype=torch.float64), batch(torch.float64)
    whole = gradient(model, "autograd", x, y)
    damped = gradient(model, unroll, x, y, interaction=interaction)
    torch.testing.assert_close(damped, interaction * whole, rtol=1e-3, atol=1e-7)


def _evaluation(model: nn.Module) -> None:
    model.eval()


def _update(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].bias.add_(0.1)  # type: ignore[union-attr, operator]


def _buffer(model: nn.Module) -> None:
    model[1].shift.add_(1.0)  # type: ignore[union-attr, operator]


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + self.shift


@pytest.mark.parametrize(
    ("change", "what"), [(_evaluation, "mode of"), (_update, "parameter bias"), (_buffer, "buffer shift")]
)
def test_a_model_that_changed_before_backward_is_refused(change: Any, what: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), Shifted(), nn.Linear(8, 4))
    objective = sp.recipes.salt(model, sp.cross_entropy, unroll="finite_difference", start=0.1)
    loss = objective(*batch())
    change(model)
    with pytest.raises(RuntimeError, match=f"{what}.*Call backward"):
        loss.backward()


def test_two_losses_before_one_backward_are_fine() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    objective = sp.recipes.salt(model, sp.cross_entropy, unroll="finite_difference", start=0.1)
    (objective(*batch()) + objective(*batch())).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_borrowed_parameters_are_refused() -> None:
    model = network()
    objective = sp.recipes.salt(model, sp.cross_entropy, unroll="finite_difference", start=0.1)
    others = {f"model.{name}": (p * 1.1).detach().requires_grad_() for name, p in model.named_parameters()}
    loss = functional_call(objective, others, batch())
    with pytest.raises(RuntimeError, match="parameter"):
        loss.backward()


def test_spectral_norm_agrees_with_the_exact_gradient() -> None:
    model = network(dtype=torch.float64)
    spectral_norm(model[2])
    x, y = batch(torch.float64)
    model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    exact = gradient(model, "autograd", x, y)
    model.load_state_dict(state)
    found = gradient(model, "finite_difference", x, y)
    model.load_state_dict(state)
    assert float(exact.norm()) > 0
    # Both differences take the constant ascent's gradient after one more power iteration.
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-6 * float(exact.norm()) + 1e-7)


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_a_slope_of_rounding_error_is_not_differentiated(unroll: str) -> None:
    """So near to the clean point float32 has no slope but rounding: the move counts as a constant. float64 has one, and it counts."""
    for dtype, differentiates in ((torch.float32, False), (torch.float64, True)):
        torch.manual_seed(0)
        model, (x, y) = nn.Sequential(nn.Linear(6, 4)).to(dtype), batch(dtype)
        found, constant = (
            torch.autograd.grad(_flat(model, way)(x, y), list(model.parameters())) for way in (unroll, False)
        )
        apart = sum(float((a - b).norm()) for a, b in zip(found, constant, strict=True))
        assert apart > 1e-4 if differentiates else apart < 1e-6


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_the_share_that_is_seen_through_is_told(unroll: Any) -> None:
    def share(x: torch.Tensor, **how: Any) -> float:
        torch.manual_seed(0)
        player = sp.PGD(sp.L2(1.0), **how)
        model = nn.Sequential(nn.Linear(6, 4)).to(x.dtype)
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), player, sp.kl))
        objective(x, torch.arange(len(x)) % 4)
        return objective.diagnostics.get("pgd/seen_through", -1.0)

    x = torch.randn(8, 6)
    near, far = {"start": 1e-5, "unroll": unroll}, {"unroll": unroll}
    assert share(x, **far) == share(x, **far, steps=2) == share(x.double(), **near) == 1
    assert share(x, **near) == 0
    assert share(x, **far, update="sign") == 0
    assert share(x) == -1  # nobody looks through a plain ascent
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    mixed = torch.cat([x, torch.zeros(8, 6)])
    objective = sp.Objective(Half(model), sp.cross_entropy, sp.Term(sp.Input(), sp.PGD(sp.L2(1.0), **far), sp.kl))
    objective(mixed, torch.arange(16) % 4)
    assert objective.diagnostics["pgd/seen_through"] == 0.5


def test_many_small_entries_are_a_slope_too() -> None:
    """In the ball of the largest entry a step climbs by all entries together, however small the largest one is."""
    found, way = {}, "autograd"
    for dtype in (torch.float32, torch.float64):
        for unroll in (way, False):
            torch.manual_seed(0)
            model = nn.Linear(4000, 4)
            x, y = torch.randn(8, 4000), torch.arange(8) % 4
            player = Placed(sp.Linf(0.05), unroll=unroll)
            object.__setattr__(player, "begins", 0.005 * torch.randn(8, 4000).sign().to(dtype))
            term = sp.Term(sp.Input(), player, sp.kl, weight=10.0)
            objective = sp.Objective(model.to(dtype), sp.cross_entropy, term)
            loss = objective(x.to(dtype), y)
            found[dtype, unroll] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])
            assert objective.diagnostics.get("placed/seen_through", 1) == 1
    single, double = (
        found[dtype, way].double() - found[dtype, False].double() for dtype in (torch.float32, torch.float64)
    )
    assert float(double.norm()) > 1e-3 * float(found[torch.float64, False].norm())
    assert float((single - double).norm()) < 0.1 * float(double.norm())


class Half(nn.Module):
    """Deaf to the first eight examples but for a whisper."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        volume = torch.ones(len(x), 1)
        volume[:8] = 1e-4
        return self.inner(x) * volume


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_the_default_start_is_far_enough_for_single_precision(unroll: Any) -> None:
    """`salt(model, loss)` in float32 sees through its follower, as float64 does from the same start, before and after training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    x, y = torch.randn(64, 6), torch.randint(4, (64,))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for trained in (0, 60):
        for _ in range(trained):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        found = []
        for dtype in (torch.float32, torch.float64):
            copied = copy.deepcopy(model).to(dtype)
            torch.manual_seed(1)
            start = PGD(sp.L2(1.0)).first_move(Slot("input", x)).to(dtype)
            ends = []
            for way in (unroll, False):
                player = Placed(sp.L2(1.0), unroll=way)
                object.__setattr__(player, "begins", start)
                objective = sp.Objective(copied, sp.cross_entropy, sp.Term(sp.Input(), player, sp.kl))
                loss = objective(x.to(dtype), y)
                ends.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(copied.parameters()))]))
            found.append((ends[0] - ends[1]).double())
        single, double = found
        assert float(double.norm()) > 1e-4
        assert float((single - double).norm() / double.norm()) < 0.05


class Placed(PGD):
    """Starts where it is told."""

    def first_move(self, slot: Slot) -> Tensor:
        return self.begins  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("ball", [sp.L2(0.5), sp.L2(0.5, rows=True), sp.Linf(0.5)])
def test_an_ascent_that_nobody_told_where_starts_a_tenth_of_the_radius_away(ball: Any) -> None:
    valid = torch.tensor([[True, True, False], [True, True, True]])
    move = PGD(ball).first_move(Slot("input", torch.zeros(2, 3, 4), valid.unsqueeze(-1)))
    norms = move.norm(dim=-1)[valid] if getattr(ball, "rows", False) else ball.norm(move)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.05))
    assert not move[0, 2].any()
    assert not torch.equal(move, PGD(ball).first_move(Slot("input", torch.zeros(2, 3, 4), valid.unsqueeze(-1))))


@pytest.mark.parametrize("autocast", [True, False])
def test_in_half_precision_it_starts_farther_away(autocast: bool) -> None:
    values = torch.zeros(2, 3, 4, dtype=torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        move = PGD(sp.L2(0.5)).first_move(Slot("input", values))
    torch.testing.assert_close(move.flatten(1).norm(dim=1), torch.full((2,), 0.25), rtol=1e-3, atol=0)


@pytest.mark.parametrize("words", [{"start": 1e-6}, {"update": "sign"}])
def test_unrolling_that_changes_nothing_is_said_once(words: Any) -> None:
    """In training step 100: a new network may answer nearly the same to everything."""
    model, (x, y) = nn.Sequential(nn.Linear(6, 4)), batch(torch.float32)
    objective = sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(0.5), **words)
    for _ in range(100):
        objective(x, y)
    with pytest.warns(UserWarning, match="salt: the derivative through the opponent's ascent is exactly 0"):
        objective(x, y)
    for _ in range(10):
        objective(x, y)


def _flat(model: nn.Module, unroll: Any) -> sp.Objective:
    objective = sp.recipes.salt(model, sp.cross_entropy, ball=sp.L2(0.5), start=1e-6, unroll=unroll)
    torch.manual_seed(3)
    return objective


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_without_labels_the_ascent_is_a_constant_unless_asked(unroll: str) -> None:
    """In a joint batch only the labelled rows are differentiated through; an unlabelled batch is a plain ascent."""
    torch.manual_seed(0)
    table = nn.Embedding(21, 6).double()  # a row of its own for every example, so that each gradient can be seen alone
    model = nn.Sequential(table, nn.Flatten(), *network(dtype=torch.float64))
    model[2:].requires_grad_(False)
    labelled, more = torch.arange(12).view(12, 1), torch.arange(12, 21).view(9, 1)

    def found(way: Any, **words: Any) -> Tensor:
        objective = sp.recipes.salt(model, sp.cross_entropy, "2", ball=sp.L2(0.5), start=0.1, unroll=way, **words)
        torch.manual_seed(3)
        loss = objective(labelled, torch.arange(12) % 4, unlabelled=more)
        return torch.autograd.grad(loss, table.weight)[0]

    usual, asked, constant = found(unroll), found(unroll, interaction=1.0), found(False)
    close = {"rtol": 1e-6, "atol": 1e-12} if unroll == "autograd" else {"rtol": 1e-3, "atol": 1e-8}
    torch.testing.assert_close(usual[:12], asked[:12], **close)
    torch.testing.assert_close(usual[12:], constant[12:], **close)
    assert float((usual - constant)[:12].norm()) > 1e-7
    assert float((asked - constant)[12:].norm()) > 1e-7


class Alive(TorchDispatchMode):
    """How many tensors of one shape are alive at once, at most; views count as what they are views of."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.now, self.most = shape, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, Tensor) and one.shape == self.shape and not function.is_view:
                self.now += 1
                self.most = max(self.most, self.now)
                weakref.finalize(one, self._gone)
        return found

    def _gone(self) -> None:
        self.now -= 1


def test_the_memory_of_the_walk_does_not_grow_with_its_steps() -> None:
    """Gradients as large as the model: as many at eight steps as at two, and those of the last step are let go."""

    def most(steps: int, **words: Any) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 17), nn.Tanh(), nn.Linear(17, 4))
        objective = sp.recipes.salt(
            model, sp.cross_entropy, "0", ball=sp.L2(0.5), start=0.1, unroll="finite_difference", steps=steps, **words
        )
        x, y = batch()
        with Alive((17, 16)) as alive:
            objective(x, y).backward()
        return alive.most

    one, two, eight = most(1), most(2), most(8)
    assert eight == two <= one + 3


def test_a_second_backward_pass_finds_the_same() -> None:
    """The first one uses up what the last step kept, so that the second takes both sides of the difference anew."""
    model, (x, y) = network(dtype=torch.float64), batch(torch.float64)
    for steps in (1, 3):
        objective = sp.recipes.salt(
            model, sp.cross_entropy, "0", ball=sp.L2(0.5), start=0.1, unroll="finite_difference", steps=steps
        )
        loss = objective(x, y)
        first, second = (torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2))
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("update", ["normalised", "raw", "adam"])
def test_every_step_of_several_counts_exactly(update: Any) -> None:
    """Early steps are probed on both sides, the last on one: all of them agree with the exact derivative."""
    model, (x, y) = network(dtype=torch.float64), batch(torch.float64)
    words = {"steps": 4, "update": update, "step_size": 0.1}
    exact, found = (gradient(model, way, x, y, **words) for way in ("autograd", "finite_difference"))
    assert float((found - exact).norm() / exact.norm()) < 1e-5
