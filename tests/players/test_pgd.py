"""Projected ascent, plain and unrolled: the Stackelberg gradient against brute force."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparring as sp


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(4, 3, dtype=torch.float64), torch.randint(3, (4,))


def loss_of(model: nn.Module, player: sp.PGD, penalty: Callable[..., Tensor], weight: float, seed: int = 7) -> Tensor:
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, penalty, weight))
    torch.manual_seed(seed)
    return objective(*data())


def finite_differences(model: nn.Module, value: Callable[[], Tensor], h: float = 1e-5) -> Tensor:
    """Central differences of a scalar over every parameter."""
    found = []
    for parameter in model.parameters():
        flat = parameter.detach().view(-1)
        for i in range(flat.numel()):
            kept = flat[i].item()
            flat[i] = kept + h
            up = value().item()
            flat[i] = kept - h
            down = value().item()
            flat[i] = kept
            found.append((up - down) / (2 * h))
    return torch.tensor(found, dtype=torch.float64)


def parameter_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# steps of 0.3 leave a ball of radius 0.5 at the second step and never leave one of radius 50
FOLLOWERS = [
    pytest.param(ball, steps, update, id=f"{type(ball).__name__}-{ball.radius}-K{steps}-{update}")
    for ball in (sp.L2(0.25), sp.L2(50.0), sp.Linf(0.2), sp.Linf(50.0))
    for steps in (1, 2, 3)
    for update in ("raw", "normalised", "adam")
]


def follower(ball: object, steps: int, update: str, **options: object) -> sp.PGD:
    size = {"raw": 4.0, "normalised": 0.3, "adam": 0.3}[update]
    return sp.PGD(ball, steps, size, start=0.1, update=update, **options)


@pytest.mark.parametrize(("ball", "steps", "update"), FOLLOWERS)
def test_stackelberg_gradient_equals_brute_force(ball: sp.L2, steps: int, update: str) -> None:
    model = network()
    player = follower(ball, steps, update, unroll="autograd")
    exact = parameter_gradient(model, loss_of(model, player, sp.kl, 3.0))
    brute = finite_differences(model, lambda: loss_of(model, player, sp.kl, 3.0))
    assert relative(exact, brute) < 1e-6


@pytest.mark.parametrize(("ball", "steps", "update"), FOLLOWERS)
@pytest.mark.parametrize("central", [False, True])
def test_finite_difference_back_end_agrees_with_the_exact_one(
    ball: sp.L2, steps: int, update: str, central: bool
) -> None:
    model = network()
    plain = parameter_gradient(model, loss_of(model, follower(ball, steps, update), sp.kl, 3.0))
    exact = parameter_gradient(model, loss_of(model, follower(ball, steps, update, unroll="autograd"), sp.kl, 3.0))
    player = follower(ball, steps, update, unroll="finite_difference", central=central)
    found = parameter_gradient(model, loss_of(model, player, sp.kl, 3.0))
    assert relative(found, exact) < (1e-6 if central else 1e-4)
    if (
        relative(plain, exact) > 1e-3
    ):  # where unrolling matters at all, the approximation must be far closer than no unrolling
        assert relative(found, exact) < 0.01 * relative(plain, exact)


def test_unrolling_changes_the_gradient() -> None:
    model = network()
    plain = parameter_gradient(model, loss_of(model, follower(sp.L2(0.25), 2, "normalised"), sp.kl, 3.0))
    exact = parameter_gradient(
        model, loss_of(model, follower(sp.L2(0.25), 2, "normalised", unroll="autograd"), sp.kl, 3.0)
    )
    assert relative(plain, exact) > 1e-3


@pytest.mark.parametrize("detach", [False, True])
def test_both_back_ends_agree_when_the_clean_side_is_detached(detach: bool) -> None:
    model = network()
    gradients = []
    for unroll in ("autograd", "finite_difference"):
        player = follower(
            sp.L2(0.25), 2, "normalised", unroll=unroll, **({"central": True} if unroll != "autograd" else {})
        )
        term = sp.Term(sp.Output("0"), player, sp.symmetric_kl, 3.0, detach_clean=detach)
        torch.manual_seed(7)
        gradients.append(parameter_gradient(model, sp.Objective(model, sp.cross_entropy, term)(*data())))
    assert relative(gradients[1], gradients[0]) < 1e-6


@pytest.mark.parametrize("unroll", ["autograd", "finite_difference"])
def test_a_detached_clean_side_is_cut_for_the_leader_alone(unroll: str, steps: list) -> None:
    """The leader sees KL(constant || perturbed); where the perturbation stands still depends on both sides."""
    model, (x, y) = network(), data()
    player = follower(sp.L2(0.25), 2, "normalised", unroll=unroll, central=True)
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, sp.kl, 3.0, detach_clean=True))
    target = model(x).detach()

    def value() -> Tensor:
        torch.manual_seed(7)
        objective(x, y)
        placed = [slot.placed.detach() for slot in steps[-1].last.slots[sp.Output("0")]]
        perturbed = sp.perturbed_call(model, {sp.Output("0"): placed}, x)
        return sp.cross_entropy(model(x), y).mean() + 3.0 * sp.kl(target, perturbed).mean()

    torch.manual_seed(7)
    found = parameter_gradient(model, objective(x, y))
    assert relative(found, finite_differences(model, value)) < 1e-5


def test_finite_difference_gradient_scales_with_the_loss() -> None:
    """Loss scaling (fp16) must scale the interaction term and nothing else."""
    model = network()
    player = follower(sp.L2(0.25), 1, "normalised", unroll="finite_difference")
    once = parameter_gradient(model, loss_of(model, player, sp.kl, 3.0))
    scaled = parameter_gradient(model, loss_of(model, player, sp.kl, 3.0) * 1024)
    assert relative(scaled / 1024, once) < 1e-6


@pytest.mark.parametrize("player", [sp.PGD(sp.L2(0.5), 3, start=1e-2), sp.PGD(sp.Linf(0.3), 3, update="sign", start=1e-2),
                                    sp.FastGradient(sp.L2(0.5), start=0.1), sp.PGD(sp.L2(0.5), 2, update="adam", start=1e-2)], ids=str)  # fmt: skip
@pytest.mark.parametrize("penalty", [sp.kl, sp.js, sp.squared_error])
def test_raises_the_payoff_more_than_noise_of_equal_norm(player: sp.PGD, penalty: Callable[..., Tensor]) -> None:
    gained, noise = [], []
    for seed in range(8):
        model = network(seed)
        objective = sp.Objective(
            model, sp.cross_entropy, sp.Term(sp.Output("0"), player, penalty, name="t"), measure_noise_every=1
        )
        objective(*data(seed))
        gained.append(objective.diagnostics["t/penalty"])
        noise.append(objective.diagnostics["t/noise_penalty"])
    assert sum(gained) > 1.5 * sum(noise)
    assert min(gained) > 0


def test_fast_gradient_equals_the_closed_form_on_a_linear_model() -> None:
    """Softmax regression: the gradient in x is W^T (p - y), so the perturbation is radius times its direction."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(3, (6,))
    seen = {}

    def spy(slot: sp.sites.Slot) -> Tensor:
        return seen["delta"]

    gradient = (model(x).softmax(-1) - torch.eye(3, dtype=torch.float64)[y]) @ model.weight
    for ball, direction in (
        (sp.L2(0.7), gradient / gradient.norm(dim=1, keepdim=True)),
        (sp.Linf(0.7), gradient.sign()),
    ):
        objective = sp.recipes.adversarial_training(model, sp.cross_entropy, ball=ball)
        loss = objective(x, y)
        seen["delta"] = 0.7 * direction
        expected = (
            sp.cross_entropy(model(x), y).mean()
            + sp.cross_entropy(sp.perturbed_call(model, {sp.Input(): spy}, x), y).mean()
        )
        torch.testing.assert_close(loss, expected)


def test_one_step_of_raw_ascent_is_the_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(3, (6,))
    player = sp.PGD(sp.L2(10.0), 1, step_size=0.25, start=0, update="raw")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Input(), player))
    gradient = (model(x).softmax(-1) - torch.eye(3, dtype=torch.float64)[y]) @ model.weight
    expected = sp.cross_entropy(model(x), y).mean() + sp.cross_entropy(model(x + 0.25 * gradient), y).mean()
    torch.testing.assert_close(objective(x, y), expected)


def test_batch_size_does_not_change_the_follower() -> None:
    """The gradient is taken of the sum of the payoffs: a raw step is the same for one example as for many."""
    torch.manual_seed(0)
    model = network()
    x, y = data()
    player = sp.PGD(sp.L2(10.0), 1, step_size=0.25, start=0, update="raw")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, replaces=1.0))
    together = objective(x, y)
    alone = torch.stack([objective(x[i : i + 1], y[i : i + 1]) for i in range(4)]).mean()
    torch.testing.assert_close(together, alone)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


@pytest.mark.parametrize("training", [True, False])
def test_fused_attention_can_be_unrolled(training: bool) -> None:
    """The flash kernel has no second derivative: the exact back end must select another and agree with finite differences."""
    torch.manual_seed(0)
    model = Attention().double().train(training)
    x, y = torch.randn(3, 5, 4, dtype=torch.float64), torch.randint(3, (3,))
    gradients = []
    for backend in ("autograd", "finite_difference"):
        objective = sp.recipes.salt(model, sp.cross_entropy, "embed", ball=sp.L2(0.5), start=0.1, unroll=backend)
        torch.manual_seed(3)
        gradients.append(parameter_gradient(model, objective(x, y)))
    assert relative(gradients[1], gradients[0]) < 1e-4


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_a_compiled_module_is_refused_with_the_fix() -> None:
    torch.manual_seed(0)
    head = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), backend="aot_eager")
    model = nn.Sequential(nn.Linear(4, 8), head)
    with pytest.raises(ValueError, match="finite_difference"):
        sp.recipes.salt(model, sp.cross_entropy, "0", ball=sp.L2(0.5))
    works = sp.recipes.salt(model, sp.cross_entropy, "0", ball=sp.L2(0.5), unroll="finite_difference")
    works(torch.randn(2, 4), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_site_inside_a_compiled_module_says_so() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), backend="eager")
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        sp.recipes.vat(model, sp.cross_entropy, "_orig_mod.0")


@pytest.mark.parametrize(("options", "message"), [
    ({"steps": 0}, "at least one step"),
    ({"update": "fast"}, 'choose "normalised"'),
    ({"unroll": True}, 'choose False, "autograd"'),
    ({"update": "raw"}, "needs step_size="),
    ({"step_size": -1.0}, "longer than 0"),
    ({"start": -0.1}, "standard deviation"),
])  # fmt: skip
def test_bad_settings_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.PGD(sp.L2(1.0), **options)
