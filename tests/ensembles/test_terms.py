"""ADP, DEG and TRS against their definitions written out naively, their second-order gradients, and combinations."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import sparring as sp
from sparring.ensembles import (
    ADP,
    DEG,
    TRS,
    Ensemble,
    LaplacePriorityDropout,
    MemberInput,
    adp,
    deg,
    magnitude,
    member_cross_entropy,
    members_of,
    similarity,
)
from sparring.recipes.ensembles import simultaneous


def smooth_ensemble(k=3, dropout=None, norm=False):
    torch.manual_seed(0)
    layers = lambda: [nn.Linear(5, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Softplus(), nn.Linear(6, 4)]
    return Ensemble([nn.Sequential(*layers()) for _ in range(k)], head="3" if norm else "2", dropout=dropout).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(6, 5, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])


def naive_adp(logits, targets, entropy=2.0, determinant=0.5):
    charges = []
    for rows, y in zip(logits, targets.tolist()):
        predictions = [row.softmax(0) for row in rows]
        mean = sum(predictions) / len(predictions)
        shannon = -sum(p * p.log() for p in mean)
        columns = []
        for p in predictions:
            others = torch.cat([p[:y], p[y + 1 :]])
            columns.append(others / others.norm())
        matrix = torch.stack(columns, 1)  # (C - 1, K)
        gram = matrix.T @ matrix + 1e-6 * torch.eye(len(predictions), dtype=matrix.dtype)
        charges.append(-entropy * shannon - determinant * torch.logdet(gram))
    return torch.stack(charges)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(3, 6), st.integers(0, 10_000))
def test_adp_is_entropy_plus_volume(members, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, members, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (4,), generator=generator)
    torch.testing.assert_close(adp(logits, targets), naive_adp(logits, targets), rtol=1e-7, atol=1e-7)


def test_adp_survives_identical_and_saturated_members():
    same = torch.zeros(2, 3, 5, requires_grad=True)
    charge = adp(same, torch.tensor([0, 4]))
    # three equal unit vectors: eigenvalues 3, 0, 0 plus the offset
    volume = math.log(3 + 1e-6) + 2 * math.log(1e-6)
    assert charge.tolist() == pytest.approx([-2 * math.log(5) - 0.5 * volume] * 2, rel=1e-5)
    sure = (1000 * torch.eye(5))[None, :3].requires_grad_()
    (gradient,) = torch.autograd.grad(adp(sure, torch.tensor([4])).sum(), sure)
    assert torch.isfinite(gradient).all()


def naive_gradients(ensemble, x, y):
    gradients = []
    for member in ensemble.members:
        rows = []
        for i in range(len(x)):
            one = x[i : i + 1].detach().clone().requires_grad_()
            rows.append(torch.autograd.grad(F.cross_entropy(member(one), y[i : i + 1]), one)[0].flatten())
        gradients.append(torch.stack(rows))
    return torch.stack(gradients, 1)  # (B, K, D)


def test_deg_and_trs_parts_are_sums_over_pairs_and_members(batch):
    gradients = naive_gradients(smooth_ensemble(), *batch)
    for i, g in enumerate(gradients):
        cosines = [float(a @ b / a.norm() / b.norm()) for a, b in itertools.combinations(g, 2)]
        assert float(deg(gradients)[i]) == pytest.approx(sum(cosines))
        assert float(similarity(gradients)[i]) == pytest.approx(sum(map(abs, cosines)) / len(cosines))
        assert float(magnitude(gradients)[i]) == pytest.approx(2 * sum(float(v @ v) for v in g) / len(g))


def test_terms_charge_the_definitions(batch):
    model = smooth_ensemble()
    gradients = naive_gradients(model, *batch)
    plain = member_cross_entropy(model(batch[0]), batch[1]).mean().item()
    assert simultaneous(model, DEG(0.01))(*batch).item() == pytest.approx(plain + 0.01 * float(deg(gradients).mean()))
    expected = 3 * plain + naive_adp(model(batch[0]).members, batch[1]).mean().item()
    assert simultaneous(model, ADP(), reduce="sum")(*batch).item() == pytest.approx(expected)
    still = TRS(ball=sp.Linf(0.0, box=(0, 1)))
    expected = plain + (40 * similarity(gradients) + 2.5 * magnitude(gradients)).mean().item()
    assert simultaneous(model, still)(*batch).item() == pytest.approx(expected)
    released = TRS(ball=sp.Linf(0.0, box=(0, 1)), released_scale=True)
    expected = plain + (40 * similarity(gradients) + 2.5 / 36 * magnitude(gradients)).mean().item()
    assert simultaneous(model, released)(*batch).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "terms",
    [
        (ADP(),),
        (DEG(0.5),),
        (TRS(2.0, 1.0, ball=sp.Linf(0.02, box=(0, 1))),),
        (ADP(), DEG(0.5), TRS(2.0, 1.0, ball=sp.Linf(0.02, box=(0, 1)))),
    ],
)
def test_second_order_gradients_match_finite_differences(terms, batch):
    """The moved half of TRS is a sign step, constant under a small change of the parameters."""
    model = smooth_ensemble()
    objective = simultaneous(model, *terms)

    def value():
        torch.manual_seed(5)
        return objective(*batch)

    names, parameters = zip(*model.named_parameters())
    gradients = torch.autograd.grad(value(), parameters)
    generator = torch.Generator().manual_seed(2)
    step = 1e-5
    for name, parameter, gradient in zip(names, parameters, gradients):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter += step * direction
            above = value().item()
            parameter -= 2 * step * direction
            below = value().item()
            parameter += step * direction
        assert (above - below) / (2 * step) == pytest.approx(float((gradient * direction).sum()), rel=1e-5, abs=1e-7), (
            name
        )


def test_trs_climbs_the_gradient_norm_inside_ball_and_bounds(batch):
    model = smooth_ensemble()
    objective = simultaneous(model, TRS(ball=sp.Linf(0.1, box=(0, 1))))
    seen = []
    watch = model.members[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    torch.manual_seed(0)
    objective(*batch)
    watch.remove()
    moved = objective.diagnostics["trs/smoothness"]
    torch.manual_seed(0)
    lazy = simultaneous(model, TRS(ball=sp.Linf(0.1, box=(0, 1)), steps=0))
    lazy(*batch)
    assert moved > lazy.diagnostics["trs/smoothness"]
    points = [x for x in seen if len(x) == 3]  # the moved half of six
    assert len(points) == 7
    assert all(bool((x >= 0).all() and (x <= 1).all()) for x in points)
    assert all(float((x - batch[0][3:]).abs().max()) <= 0.1 + 1e-9 for x in points)
    longest = max(float((after - before).abs().max()) for before, after in itertools.pairwise(points))
    assert longest == pytest.approx(0.1 / 3), "a step is a third of the radius"


def test_the_ball_of_trs_may_grow_with_the_training_step(batch):
    seen = []
    objective = simultaneous(smooth_ensemble(), TRS(ball=lambda step: seen.append(step) or sp.Linf(0.01, box=(0, 1))))
    for _ in range(3):
        objective(*batch)
    assert seen == [0, 1, 2]


def test_zero_weights_give_the_plain_loss_bit_for_bit(batch):
    model = smooth_ensemble()
    plain = simultaneous(model)(*batch)
    idle = simultaneous(model, ADP(0.0, 0.0), DEG(0.0), TRS(0.0, 0.0), by=sp.FastGradient(sp.Linf(0.0)))(*batch)
    assert torch.equal(plain, idle)
    for a, b in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in (plain, idle))):
        assert torch.equal(a, b)


def test_one_adversary_for_all_or_one_for_each(batch):
    x, y = batch
    model, eps = smooth_ensemble(), 0.05
    gradients = naive_gradients(model, x, y)
    shared = x + eps * gradients.mean(1).sign()
    expected = member_cross_entropy(model(x), y).mean() + member_cross_entropy(model(shared), y).mean()
    fgsm = sp.FastGradient(sp.Linf(eps))
    torch.testing.assert_close(simultaneous(model, by=fgsm)(x, y), expected)
    own = torch.stack([F.cross_entropy(m(x + eps * gradients[:, k].sign()), y) for k, m in enumerate(model.members)])
    expected = member_cross_entropy(model(x), y).mean() + own.mean()
    each = simultaneous(model, by=fgsm, craft="member")
    torch.testing.assert_close(each(x, y), expected)
    assert own.mean() > F.cross_entropy(model(shared).members.flatten(0, 1), y.repeat_interleave(3))
    assert each.diagnostics["adversarial/norm"] == pytest.approx(eps)


@pytest.mark.parametrize("craft", ["ensemble", "member"])
@pytest.mark.parametrize("dropout", [None, LaplacePriorityDropout()])
def test_everything_combines_and_leaves_nothing_behind(craft, dropout, batch):
    model = smooth_ensemble(dropout=dropout, norm=True)
    x = batch[0].clone().requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pgd = sp.PGD(sp.Linf(0.03), steps=2, update="sign")
    terms = (ADP(), DEG(), TRS(ball=sp.Linf(0.01, box=(0, 1)), steps=1))
    objective = simultaneous(model, *terms, by=pgd, craft=craft)
    torch.manual_seed(0)
    loss = objective(x, batch[1])
    assert torch.isfinite(loss)
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert not x.requires_grad
    hooks = [(m._forward_hooks, m._forward_pre_hooks, m.__dict__.get("forward")) for m in model.modules()]
    assert all(not a and not b and c is None for a, b, c in hooks)
    plain = smooth_ensemble(dropout=dropout, norm=True)
    plain.load_state_dict(before)
    torch.manual_seed(0)
    plain(x)
    for name, value in plain.state_dict().items():  # statistics moved once, by the clean pass
        torch.testing.assert_close(value, model.state_dict()[name])
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_vanished_gradients_charge_nothing_and_stay_finite():
    gradients = torch.zeros(2, 3, 4, requires_grad=True)
    for charge in (deg(gradients), similarity(gradients), magnitude(gradients)):
        (slope,) = torch.autograd.grad(charge.sum(), gradients)
        assert not charge.any()
        assert torch.isfinite(slope).all()


def test_errors_say_what_is_missing(batch):
    with pytest.raises(TypeError, match="wrap the networks"):
        simultaneous(nn.Linear(5, 4))
    with pytest.raises(ValueError, match="craft='both'"):
        simultaneous(smooth_ensemble(), craft="both")
    with pytest.raises(TypeError, match=r"needs sparring\.ensembles\.Ensemble; the model returns Tensor"):
        sp.Objective(nn.Linear(5, 4).double(), sp.cross_entropy, ADP())(*batch)
    with pytest.raises(ValueError, match="matches no ensemble member"):
        sp.Objective(nn.Linear(5, 4), sp.cross_entropy, sp.Term(at=MemberInput(), by=sp.Noise(sp.Linf(0.1))))
    with pytest.raises(ValueError, match="reduce='max'"):
        simultaneous(smooth_ensemble(), reduce="max")(*batch)
    with pytest.raises(ValueError, match=r"outside box=\(0, 1\)"):
        simultaneous(smooth_ensemble(), TRS())(3 * batch[0], batch[1])
    with pytest.raises(ValueError, match="steps=-1"):
        TRS(steps=-1)
    with pytest.raises(ValueError, match="targets are missing"):
        simultaneous(smooth_ensemble(), DEG())(batch[0])


def test_label_free_penalties_compare_member_by_member(batch):
    model = smooth_ensemble()
    term = sp.Term(at=sp.Input(), by=sp.Noise(sp.Linf(0.05)), penalty=sp.kl, name="kl")
    objective = sp.Objective(model, member_cross_entropy, term, outputs=members_of)
    torch.manual_seed(0)
    charge = objective(batch[0]).item()
    torch.manual_seed(0)
    moved = batch[0] + sp.Linf(0.05).sample(torch.zeros_like(batch[0]))
    assert charge == pytest.approx(sp.kl(model(batch[0]).members, model(moved).members).mean().item())


def test_input_gradients_come_from_the_clean_pass_itself(batch) -> None:
    objective = simultaneous(smooth_ensemble(), DEG())
    objective(*batch).backward()
    objective(*batch).backward()
    assert objective.diagnostics["forward_passes"] == 1
