"""Autoencoders for implicit feedback against torch.distributions, dense layers, enumeration and quadrature."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor, nn

from sparring.lab.models.vae import (
    CDAE,
    DAE,
    IAF,
    SIVAE,
    VAE,
    Annealing,
    Encoder,
    MaskedStep,
    Posterior,
    Rows,
    SparseLinear,
    VampPrior,
    gaussian_kl,
    log_normal,
    mixture_log_density,
    multinomial_log_likelihood,
    standard_log_density,
)
from sparring.lab.models.vae.masks import hard_multiplier, mean_multiplier, soft_multiplier
from sparring.nn.dropout.bernoulli import BernoulliDropout
from sparring.nn.dropout.concrete import ConcreteDropout
from sparring.nn.dropout.gaussian import GaussianDropout

DOUBLE = torch.empty(0, dtype=torch.float64)


def likes(users: int = 6, items: int = 9, seed: int = 0) -> csr_array:
    return csr_array((np.random.default_rng(seed).random((users, items)) < 0.4).astype(np.float32))


def models(items: int = 9, users: int = 6) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    small = {"hidden": 8, "latent": 3}
    return {
        "vae": VAE(items, **small),
        "vae+drop": VAE(items, dropout=0.5, **small),
        "vamp": VAE(items, dropout=0.5, pseudo_users=4, **small),
        "iaf": VAE(items, dropout=0.5, flow_steps=2, **small),
        "dae": DAE(items, hidden=5),
        "cdae": CDAE(items, users, hidden=5),
        "sivae-bernoulli": SIVAE(items, BernoulliDropout(items), extra=2, **small),
        "sivae-concrete": SIVAE(items, ConcreteDropout(items, p=0.5), extra=2, **small),
        "sivae-gaussian": SIVAE(items, GaussianDropout(items, p=0.5, learn=True), extra=2, **small),
    }


# ------------------------------------------------------------------------------------------- the batch and its layer


@given(st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_rows_hold_the_matrix(table: list[list[int]]) -> None:
    dense = torch.tensor(table, dtype=torch.float64)
    rows = Rows.of(csr_array(dense.numpy()), like=DOUBLE)
    assert torch.equal(rows.dense(), dense)
    assert torch.equal(rows.sum(rows.values), dense.sum(-1))
    assert rows.offsets.diff().tolist() == (dense != 0).sum(-1).tolist()
    unit = torch.zeros_like(dense).index_put((rows.users, rows.items), rows.normalised)
    torch.testing.assert_close(unit, nn.functional.normalize(dense, dim=-1))


def test_rows_can_be_cut_in_any_order_and_skip_stored_zeros() -> None:
    matrix = csr_array((np.array([0.0, 1.0, 2.0]), np.array([0, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    rows = Rows.of(matrix, torch.tensor([1, 0]))
    assert rows.dense().tolist() == [[2, 0, 0], [0, 1, 0]]
    assert rows.ids.tolist() == [1, 0]


def test_sparse_linear_equals_a_dense_layer_with_its_gradients() -> None:
    rows = Rows.of(likes(), like=DOUBLE)
    layer = SparseLinear(9, 4).double()
    entries = torch.randn(3, len(rows.items), dtype=torch.float64, requires_grad=True)
    ours = layer(rows, entries)
    table = torch.zeros(3, len(rows), 9, dtype=torch.float64)
    theirs = table.index_put((torch.arange(3)[:, None], rows.users, rows.items), entries) @ layer.weight + layer.bias
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    for mine, dense in zip(
        torch.autograd.grad((ours * weights).sum(), [entries, *layer.parameters()]),
        torch.autograd.grad((theirs * weights).sum(), [entries, *layer.parameters()]),
    ):
        torch.testing.assert_close(mine, dense)


# --------------------------------------------------------------------------------------------------------- densities


def test_likelihood_equals_torch_multinomial() -> None:
    counts = csr_array(np.random.default_rng(1).integers(0, 4, (5, 7)).astype(float))
    rows, logits = Rows.of(counts, like=DOUBLE), torch.randn(5, 7, dtype=torch.float64)
    for user, dense in enumerate(rows.dense()):
        full = torch.distributions.Multinomial(int(dense.sum()), logits=logits[user]).log_prob(dense)
        coefficient = torch.lgamma(dense.sum() + 1) - torch.lgamma(dense + 1).sum()
        assert multinomial_log_likelihood(logits, rows)[user].item() == pytest.approx((full - coefficient).item())


def test_gaussian_densities_and_kl_equal_torch() -> None:
    mean, log_variance, value = torch.randn(3, 4, 5, dtype=torch.float64)
    normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
    standard = torch.distributions.Normal(torch.zeros_like(mean), 1.0)
    torch.testing.assert_close(log_normal(value, mean, log_variance), normal.log_prob(value).sum(-1))
    torch.testing.assert_close(standard_log_density(value), standard.log_prob(value).sum(-1))
    expected = torch.distributions.kl_divergence(normal, standard).sum(-1)
    torch.testing.assert_close(gaussian_kl(Posterior(mean, log_variance, mean)), expected)


def test_vamp_prior_is_the_mixture_of_its_posteriors() -> None:
    torch.manual_seed(0)
    encoder, prior = Encoder(9, 8, 3).double(), VampPrior(9, components=5).double()
    latent = 2 * torch.randn(6, 3, dtype=torch.float64)
    pseudo = prior.pseudo.sigmoid()
    mean, log_variance, _ = encoder.dense(pseudo / pseudo.norm(dim=-1, keepdim=True))
    parts = torch.distributions.Independent(torch.distributions.Normal(mean, (log_variance / 2).exp()), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=torch.zeros(5)), parts)
    torch.testing.assert_close(prior(latent, encoder), mixture.log_prob(latent))
    naive = [math.log(sum(parts.log_prob(point).exp().tolist()) / 5) for point in latent]
    assert prior(latent, encoder).tolist() == pytest.approx(naive)
    (prior(latent, encoder).sum()).backward()
    assert prior.pseudo.grad.abs().sum() > 0


def test_mixture_density_survives_far_points_in_single_precision() -> None:
    torch.manual_seed(0)
    posterior = Posterior(torch.randn(7, 200), torch.randn(7, 200) - 2, torch.empty(7, 0))
    latent = 5 * torch.randn(4, 200)
    exact = mixture_log_density(latent.double(), Posterior(*(part.double() for part in posterior)))
    torch.testing.assert_close(mixture_log_density(latent, posterior).double(), exact, rtol=1e-5, atol=1e-2)


# -------------------------------------------------------------------------------------------------------------- flow


@pytest.mark.parametrize("latent", [1, 2, 5])
def test_flow_determinant_equals_the_jacobian(latent: int) -> None:
    torch.manual_seed(0)
    flow = IAF(latent, context=3, steps=3, hidden=7).double()
    for parameter in flow.parameters():
        nn.init.normal_(parameter)
    start, context = torch.randn(4, latent, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    _, log_determinant = flow(start, context)
    for user in range(4):

        def alone(point: Tensor, user: int = user) -> Tensor:
            return flow(point[None], context[user : user + 1])[0][0]

        jacobian = torch.autograd.functional.jacobian(alone, start[user])
        assert torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(log_determinant[user].item())


def test_a_step_sees_only_earlier_places_and_uses_them() -> None:
    torch.manual_seed(0)
    step = MaskedStep(4, hidden=12, context=2).double()
    context = torch.zeros(1, 2, dtype=torch.float64)
    point = torch.randn(4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda p: step(p[None], context)[0][0], point)
    assert torch.equal(jacobian.triu(1), torch.zeros_like(jacobian))
    assert (jacobian.tril(-1).abs().sum(-1)[1:] > 0).all()


def test_flow_vae_charges_the_density_of_what_it_draws() -> None:
    """One latent: q(latent) by change of variables, checked against a histogram-free quadrature of E[log q - log p]."""
    torch.manual_seed(0)
    model = VAE(9, hidden=6, latent=1, flow_steps=2).double()
    rows = Rows.of(likes(1), like=DOUBLE)
    nodes, weights = quadrature(80)
    with torch.no_grad():
        posterior = model.encoder(rows, rows.normalised)
        moved = torch.cat([model.flow(posterior.sample(n[None, None]), posterior.hidden)[0] for n in nodes])
        losses = torch.stack([model.losses(rows, noise=n[None, None])[0] for n in nodes])
        plain = torch.stack([-multinomial_log_likelihood(model.decoder(m[None]), rows)[0] for m in moved])
    slope = torch.gradient(moved[:, 0], spacing=(nodes,))[0].abs()  # d latent / d noise
    log_q = standard_log_density(nodes[:, None]) - slope.log()
    expected = plain + log_q - standard_log_density(moved)
    assert (weights * losses).sum().item() == pytest.approx((weights * expected).sum().item(), abs=1e-2)


def quadrature(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights that integrate over one standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return torch.tensor(nodes), torch.tensor(weights / weights.sum())


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("layer", [ConcreteDropout(5, p=0.3), GaussianDropout(5, p=0.3, learn=True)])
def test_sparse_masks_equal_the_layers_own(layer: ConcreteDropout | GaussianDropout) -> None:
    torch.manual_seed(3)
    expected = layer.train().draw(torch.ones(4, 5))
    torch.manual_seed(3)
    torch.testing.assert_close(soft_multiplier(layer, torch.arange(5), versions=4), expected)
    assert mean_multiplier(layer, torch.arange(5)).tolist() == layer.eval().draw(torch.ones(1, 5))[0].tolist()


@pytest.mark.parametrize("rescale", [False, True])
def test_hard_masks_equal_the_layers_own(rescale: bool) -> None:
    layer = BernoulliDropout(5, keep=0.3, rescale=rescale)
    torch.manual_seed(3)
    expected = layer.train().draw(torch.ones(4, 5))
    torch.manual_seed(3)
    mask = (torch.rand(4, 5) < 0.3).float()
    torch.testing.assert_close(hard_multiplier(layer, torch.arange(5), mask), expected)
    torch.testing.assert_close(mean_multiplier(layer, torch.arange(5)), layer.eval().draw(torch.ones(1, 5))[0])


# ------------------------------------------------------------------------------------------------------------- SIVAE


def two_unit_model(extra: int, features: int = 3, rescale: bool = False, estimator: str = "arm") -> tuple[SIVAE, Rows]:
    """One user who has two of three items: two input units whose masks matter, and one whose mask cannot."""
    torch.manual_seed(1)
    layer = BernoulliDropout(features, rescale=rescale)
    model = SIVAE(3, layer, extra=extra, hidden=4, latent=1, estimator=estimator).double()  # type: ignore[arg-type]
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([0.8, -0.5, 0.3][:features], dtype=torch.float64))
        for parameter in model.encoder.parameters():
            parameter.mul_(2)
    return model, Rows.of(csr_array([[1.0, 1.0, 0.0]]), like=DOUBLE)


def enumerated(model: SIVAE, rows: Rows, noise: Tensor, beta: float) -> Tensor:
    """E over all masks of the bound, exactly and differentiably: sum of P(masks) bound(masks)."""
    layer, total = model.dropout, torch.zeros((), dtype=torch.float64)
    assert isinstance(layer, BernoulliDropout)
    keep = layer.keep.expand(3)[rows.items]
    for bits in itertools.product([0.0, 1.0], repeat=(model.extra + 1) * len(rows.items)):
        masks = torch.tensor(bits, dtype=torch.float64).view(model.extra + 1, -1)
        probability = torch.where(masks > 0, keep, 1 - keep).prod()
        multipliers = masks / keep if layer.rescale else masks
        total = total + probability * model.bound(rows, multipliers, noise, beta).mean()
    return total


@pytest.mark.parametrize("estimator", ["arm", "disarm"])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize(("extra", "features"), [(0, 3), (1, 3), (1, 1)])
def test_gradient_integrates_to_the_enumerated_one(estimator: str, rescale: bool, extra: int, features: int) -> None:
    """Integrate `losses`' gradient over u cell by cell (it is linear in u there: the midpoint is exact)."""
    model, rows = two_unit_model(extra, features, rescale, estimator)
    noise = torch.tensor([[0.7]], dtype=torch.float64)
    parameters = list(model.parameters())
    exact = torch.autograd.grad(enumerated(model, rows, noise, beta=0.6), parameters)
    rates = model.dropout.keep.detach().expand(3)[rows.items].repeat(extra + 1)
    cells = [sorted([0.0, 1.0, rate, 1 - rate]) for rate in rates.tolist()]
    integral = [torch.zeros_like(parameter) for parameter in parameters]
    for choice in itertools.product(range(3), repeat=len(cells)):
        edges = [(cell[i], cell[i + 1]) for cell, i in zip(cells, choice)]
        volume = math.prod(high - low for low, high in edges)
        middle = torch.tensor([(low + high) / 2 for low, high in edges], dtype=torch.float64).view(extra + 1, -1)
        loss = model.losses(rows, beta=0.6, noise=noise, uniforms=middle).mean()
        for total, part in zip(integral, torch.autograd.grad(loss, parameters)):
            total += volume * part
    for mine, true in zip(integral, exact):
        assert (mine - true).abs().max() < 1e-12
    names = [name for name, _ in model.named_parameters()]
    assert exact[names.index("dropout.logits")].abs().max() > 1e-3


def test_the_plain_elbo_gradient_is_not_that_of_the_bound() -> None:
    """Released code trains the logits by the gradient of the V = 0 bound while it reports V > 0: not the same thing."""
    noise = torch.tensor([[0.7]], dtype=torch.float64)
    gradients = []
    for extra in (0, 1):
        model, rows = two_unit_model(extra)
        gradients.append(torch.autograd.grad(enumerated(model, rows, noise, 1.0), model.dropout.logits)[0])
    assert (gradients[0] - gradients[1]).norm() > 0.05 * gradients[1].norm()


def test_enumerated_gradient_equals_finite_differences() -> None:
    """The oracle itself: the logits' gradient of the enumerated bound by central differences."""
    model, rows = two_unit_model(extra=1)
    noise, logits = torch.tensor([[-0.4]], dtype=torch.float64), model.dropout.logits
    (exact,) = torch.autograd.grad(enumerated(model, rows, noise, 1.0), logits)
    for unit in range(3):
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                logits[unit] += step
                values.append(enumerated(model, rows, noise, 1.0).item())
                logits[unit] -= step
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(exact[unit].item(), abs=1e-8)
    assert exact[2] == 0  # nobody has the third item


def test_monte_carlo_gradient_is_unbiased_for_several_users() -> None:
    torch.manual_seed(0)
    model = SIVAE(3, BernoulliDropout(3, keep=0.6), extra=1, hidden=4, latent=2).double()
    rows = Rows.of(csr_array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]), like=DOUBLE)
    noise = torch.randn(2, 2, dtype=torch.float64)
    logits = model.dropout.logits
    (exact,) = torch.autograd.grad(enumerated(model, rows, noise, 1.0), logits)
    draws = torch.stack([torch.autograd.grad(model.losses(rows, noise=noise).mean(), logits)[0] for _ in range(1200)])
    z = (draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)
    assert z.abs().max() < 4


def test_no_extra_mask_is_the_elbo() -> None:
    """Averaged over the noise by quadrature, V = 0 equals the VAE's bound with its closed-form KL at the same mask."""
    model, rows = two_unit_model(extra=0)
    twin = VAE(3, hidden=4, latent=1).double()
    twin.encoder, twin.decoder = model.encoder, model.decoder
    nodes, weights = quadrature(60)
    whole = torch.ones(1, 2, dtype=torch.float64)
    ours = sum(w * model.bound(rows, whole, n[None, None], beta=0.7) for n, w in zip(nodes, weights))
    elbo = sum(w * twin.losses(rows, beta=0.7, noise=n[None, None]) for n, w in zip(nodes, weights))
    torch.testing.assert_close(ours, elbo, rtol=0, atol=1e-12)


def test_the_bound_tightens_with_every_extra_mask() -> None:
    """Exact expectations (all masks enumerated, noise by quadrature) fall with V, towards the true log q's."""
    nodes, weights = quadrature(40)
    expected = []
    for extra in (0, 1, 2, 3):
        model, rows = two_unit_model(extra)
        with torch.no_grad():
            expected.append(exact_bound(model, rows, nodes, weights))
    model, rows = two_unit_model(extra=0)
    with torch.no_grad():
        masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)), dtype=torch.float64)
        keep = model.dropout.keep[rows.items]
        probability = torch.where(masks > 0, keep, 1 - keep).prod(-1)
        posterior = model.encoder(rows, masks * rows.normalised)
        limit = 0.0
        for mask, chance in enumerate(probability):
            latent = Posterior(*(part[mask] for part in posterior)).sample(nodes[:, None])
            log_q = (posterior.log_density(latent[None]) + probability.log()[:, None]).logsumexp(0)
            fit = multinomial_log_likelihood(model.decoder(latent), rows_repeated(rows, len(nodes)))
            limit += (chance * (weights * (log_q - standard_log_density(latent) - fit)).sum()).item()
    steps = [a - b for a, b in zip(expected, [*expected[1:], limit])]
    assert all(step > 1e-4 for step in steps), (expected, limit)


def exact_bound(model: SIVAE, rows: Rows, nodes: Tensor, weights: Tensor) -> float:
    keep, total = model.dropout.keep[rows.items], 0.0
    many = rows_repeated(rows, len(nodes))
    for bits in itertools.product([0.0, 1.0], repeat=(model.extra + 1) * 2):
        masks = torch.tensor(bits, dtype=torch.float64).view(model.extra + 1, 2)
        probability = torch.where(masks > 0, keep, 1 - keep).prod()
        total += (probability * (weights * model.bound(many, masks.repeat(1, len(nodes)), nodes[:, None])).sum()).item()
    return total


def rows_repeated(rows: Rows, times: int) -> Rows:
    return Rows.of(csr_array(rows.dense().repeat(times, 1).numpy()), like=DOUBLE)


def test_the_bound_tightens_on_a_wider_model() -> None:
    """Paired samples: the same generating masks and noise, more and more extra masks."""
    torch.manual_seed(0)
    rows = Rows.of(likes(400, 30), like=DOUBLE)
    model = SIVAE(30, BernoulliDropout(30), hidden=16, latent=4).double()
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.mul_(3)
        masks = (torch.rand(17, 20, len(rows.items)) < 0.5).double()
        noise = torch.randn(20, len(rows), 4, dtype=torch.float64)
        bounds = {
            v: torch.cat([model.bound(rows, masks[: v + 1, r], noise[r]) for r in range(20)]) for v in (0, 1, 4, 16)
        }
    for fewer, more in [(0, 1), (1, 4), (4, 16)]:
        gap = bounds[fewer] - bounds[more]
        assert gap.mean() / (gap.std() / len(gap) ** 0.5) > 5


@pytest.mark.parametrize("kind", ["concrete", "gaussian"])
def test_relaxed_dropout_learns_by_plain_backward(kind: str) -> None:
    model = models()[f"sivae-{kind}"]
    model.losses(Rows.of(likes())).mean().backward()
    (rates,) = model.dropout.parameters()
    assert torch.isfinite(rates.grad).all()
    assert rates.grad.abs().max() > 0


def test_losses_are_the_bound_itself_and_frozen_rates_cost_nothing() -> None:
    model, rows = two_unit_model(extra=1)
    noise, uniforms = (
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([[0.2, 0.9], [0.6, 0.1]], dtype=torch.float64),
    )
    masks = (uniforms < model.dropout.keep[rows.items]).double()
    value = model.losses(rows, noise=noise, uniforms=uniforms)
    torch.testing.assert_close(value, model.bound(rows, masks, noise))
    model.dropout.logits.requires_grad_(False)
    assert torch.equal(model.losses(rows, noise=noise, uniforms=uniforms), model.bound(rows, masks, noise))


# -------------------------------------------------------------------------------------------------------- every model


@pytest.mark.parametrize("name", models())
def test_training_lowers_the_loss(name: str) -> None:
    model, rows = models()[name], Rows.of(likes())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    history = []
    for _ in range(150):
        loss = model.losses(rows, beta=0.1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(loss.item())
    assert np.mean(history[-20:]) < np.mean(history[:20]) - 0.5


@pytest.mark.parametrize("name", models())
def test_scores_are_repeatable_and_each_users_own(name: str) -> None:
    model, matrix = models()[name].train(), likes()
    together = model.scores(matrix)
    assert torch.equal(together, model.scores(matrix))
    alone = torch.cat([model.scores(csr_array(matrix[[user]])) for user in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("empty", ["one", "all"])
def test_empty_rows_stay_finite(name: str, empty: str) -> None:
    model, table = models()[name], likes().toarray()
    table[slice(1, 2) if empty == "one" else slice(None)] = 0
    matrix = csr_array(table)
    loss = model.losses(Rows.of(matrix), beta=0.5).mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert torch.isfinite(model.scores(matrix)).all()


def test_new_users_vectors_fit_what_they_show() -> None:
    model, rows = models()["cdae"], Rows.of(likes(seed=5))

    def charge(vectors: Tensor) -> Tensor:
        return model._losses(rows, rows.normalised, vectors)

    assert (charge(model.fold_in(rows)) < charge(torch.zeros(6, 5))).all()
    model.fold_in_steps = 0
    assert model.fold_in(rows).abs().sum() == 0


@given(st.integers(0, 500), st.integers(1, 300), st.floats(0, 2))
def test_annealing_is_a_ramp(update: int, updates: int, cap: float) -> None:
    beta = Annealing(updates, cap)
    assert 0 <= beta(update) <= beta(update + 1) <= cap
    assert beta(updates) == cap
    assert Annealing(0, cap)(update) == cap


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="dropout has 4 rates for items=9"):
        SIVAE(9, BernoulliDropout(4))
    with pytest.raises(ValueError, match="extra=-1"):
        SIVAE(9, BernoulliDropout(9), extra=-1)
    with pytest.raises(ValueError, match="estimator='reinforce' is unknown"):
        SIVAE(9, BernoulliDropout(9), estimator="reinforce")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="components=0"):
        VampPrior(9, components=0)
    with pytest.raises(ValueError, match="steps=0"):
        IAF(3, 3, steps=0)
    with pytest.raises(ValueError, match="cap=-1"):
        Annealing(10, -1)
