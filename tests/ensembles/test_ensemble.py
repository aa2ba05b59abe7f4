"""The ensemble itself: what it returns, what it shares with its networks, and what it refuses."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparring.ensembles import (
    Ensemble,
    EnsembleDropout,
    EnsembleOutput,
    LaplacePriorityDropout,
    PriorityDiversifiedDropout,
    calibrate_gamma,
    member_cross_entropy,
)


class Net(nn.Module):
    def __init__(self, features=8, classes=3, after=None):
        super().__init__()
        self.register_buffer("shift", torch.zeros(1))
        self.inner = nn.Sequential(nn.Linear(4, features), nn.BatchNorm1d(features), nn.ReLU())
        self.top = nn.ModuleDict({"fc": nn.Linear(features, classes)})
        self.after = after

    def forward(self, x):
        x = self.top["fc"](self.inner(x + self.shift))
        return x if self.after is None else self.after(x)


def ensemble(k=3, **kwargs):
    torch.manual_seed(0)
    return Ensemble([Net() for _ in range(k)], head="top.fc", **kwargs)


def run(after=None, head="top.fc"):
    return Ensemble([Net(after=after), Net(after=after)], head=head)(torch.randn(2, 4))


def test_prediction_is_the_mean_softmax_and_the_loss_the_mean_cross_entropy():
    model, x, y = ensemble(), torch.randn(6, 4), torch.randint(3, (6,))
    out = model(x)
    torch.testing.assert_close(out.logits.softmax(-1), out.members.softmax(-1).mean(1))
    each = torch.stack([F.cross_entropy(out.members[:, k], y, reduction="none") for k in range(3)])
    torch.testing.assert_close(member_cross_entropy(out, y), each.mean(0))
    torch.testing.assert_close(member_cross_entropy(out.members, y, reduce="sum"), each.sum(0))


def test_confident_members_stay_finite_in_log_space():
    out = EnsembleOutput.of(torch.tensor([[[500.0, 0.0, -500.0], [0.0, 500.0, -500.0]]], dtype=torch.bfloat16))
    assert out.logits.dtype == torch.float32
    assert torch.isfinite(out.logits).all()


def test_networks_keep_working_and_share_everything():
    nets = [Net() for _ in range(2)]
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    model = Ensemble(nets, head="top.fc")
    assert {id(p) for p in model.parameters()} == {id(p) for net in nets for p in net.parameters()}
    x = torch.randn(16, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    member_cross_entropy(model(x), torch.randint(3, (16,))).mean().backward()
    optimiser.step()
    model.eval()
    for k, net in enumerate(nets):
        assert not torch.equal(net.top["fc"].weight, before[k]["top.fc.weight"])
        assert not torch.equal(net.inner[1].running_mean, before[k]["inner.1.running_mean"])
        torch.testing.assert_close(net.eval()(x), model(x).members[:, k])
    model.double()
    assert nets[0].shift.dtype == torch.float64


def test_state_and_copies_round_trip():
    model, other = ensemble(dropout=LaplacePriorityDropout(gamma=7.0)), ensemble(dropout=LaplacePriorityDropout())
    for p in other.parameters():
        nn.init.normal_(p)
    other.load_state_dict(model.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(model.eval()(x).logits, other.eval()(x).logits)
    assert float(other.dropout.gamma) == 7
    assert torch.equal(copy.deepcopy(model)(x).members, model(x).members)


@pytest.mark.parametrize("dropout", [LaplacePriorityDropout(), PriorityDiversifiedDropout(), EnsembleDropout(0.5)])
def test_dropout_acts_on_the_features_in_training_only(dropout):
    model = ensemble(dropout=dropout)
    x = torch.randn(32, 4)
    assert torch.equal(model.eval()(x).members, torch.stack([m(x) for m in model.members], 1))
    model.train()
    torch.manual_seed(3)
    first = model(x).members
    torch.manual_seed(3)
    assert torch.equal(first, model(x).members)
    assert not torch.equal(first, model(x).members)
    torch.manual_seed(3)
    masked = dropout(model.features(x))
    torch.testing.assert_close(first, torch.stack([m.head(f) for m, f in zip(model.members, masked)], 1))


def test_members_may_differ_in_architecture_and_head():
    nets = [Net(8), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))]
    model = Ensemble(nets, head=["top.fc", "2"])
    assert model(torch.randn(2, 4)).members.shape == (2, 2, 3)
    mixed = Ensemble(nets, head=["top.fc", "2"], dropout=LaplacePriorityDropout(uneven=True))
    assert mixed(torch.randn(2, 4)).members.shape == (2, 2, 3)
    assert Ensemble(nets, head=["top.fc", "2"], dropout=EnsembleDropout()).dropout is not None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Ensemble([Net()], head="top.fc"), r"1 network\(s\); an ensemble needs at least 2"),
        (lambda: Ensemble([Net()] * 2, head="top.fc"), "repeats the same network"),
        (lambda: Ensemble([Net(), Net()], head="fc"), r"head='fc' names no module of member 0 \(Net\).*'top.fc'"),
        (lambda: Ensemble([Net(), Net(classes=4)], head="top.fc"), r"\[3, 4\] classes"),
        (lambda: Ensemble([Net(), Net()], head=["top.fc"]), "1 layers for 2 members"),
        (
            lambda: Ensemble([Net(classes=1), Net(classes=1)], head="top.fc")(torch.randn(2, 4)),
            "softmax of one is always 1",
        ),
        (
            lambda: Ensemble([Net(8), Net(6)], head="top.fc", dropout=LaplacePriorityDropout()),
            "have 8, 6 features.*uneven=True",
        ),
        (lambda: Ensemble([Net(after=F.softmax), Net()], head="top.fc")(torch.randn(2, 4)), "goes on computing"),
        (lambda: run(after=lambda x: {"logits": x}), "member 0 returns a dict; an ensemble expects bare logits"),
        (lambda: run(after=lambda x: (x, None)), "member 0 returns a tuple; an ensemble expects bare logits"),
        (lambda: run(head="inner.0"), r"does not run with head='inner.0' taken out \(.*\): name its last layer"),
    ],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_bad_ensembles_are_refused_by_name(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_gamma_is_calibrated_to_the_mean_keep_rate_of_active_units():
    torch.manual_seed(0)
    features = [torch.randn(50, 40).relu() * 2 for _ in range(3)]
    active = [tensor > 0 for tensor in features]
    found = []
    for keep in (0.4, 0.6, 0.8):
        dropout = LaplacePriorityDropout()
        found.append(calibrate_gamma(dropout, features, keep))
        rates = torch.cat([r[a] for r, a in zip(dropout.keep_rates(features), active)])
        assert float(rates.mean()) == pytest.approx(keep, abs=1e-4)
        assert float(dropout.gamma) == pytest.approx(found[-1], rel=1e-6)
    assert found == sorted(found, reverse=True)
    with pytest.raises(ValueError, match=r"keep=0.99 is out of reach.*to 0.9770"):
        calibrate_gamma(LaplacePriorityDropout(), features, 0.99)
    with pytest.raises(ValueError, match="nothing to calibrate"):
        calibrate_gamma(LaplacePriorityDropout(), [torch.zeros(2, 3)] * 2, 0.5)
