"""The audit: what it must flag, what it must not, and what it says."""

import copy
import json
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparring as sp
from sparring.attacks import PGD
from sparring.ensembles import Ensemble, LaplacePriorityDropout
from sparring.ensembles.ensemble import member_cross_entropy
from sparring.metrics import Audit, audit
from sparring.metrics.audit.checks import LONG, TWIN, USUAL, attack_checks, beats, output_checks
from sparring.metrics.audit.report import LIMIT, Check, conclude
from sparring.metrics.robustness import RobustAccuracy, robust_accuracy

QUICK: dict[str, Any] = {"autoattack": False, "steps": 10, "restarts": 2, "queries": 100}


BALL = sp.Linf(0.1, box=(0, 1))


def member() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))


def trained(dropout: nn.Module | None = None, epochs: int = 20) -> Ensemble:
    torch.manual_seed(0)
    ensemble = Ensemble([member() for _ in range(3)], head="5", dropout=dropout)
    x, y = digits()[:2]
    optimiser = torch.optim.Adam(ensemble.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            member_cross_entropy(ensemble(x[rows]), y[rows]).mean().backward()
            optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return ensemble.eval()


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    raw = load_digits()
    x, y = torch.tensor(raw.images / 16, dtype=torch.float32)[:, None], torch.tensor(raw.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1200], y[:1200], x[1200:1350], y[1200:1350]


def scaled(ensemble: Ensemble, factor: float) -> Ensemble:
    """The same ensemble with every member's logits multiplied."""
    louder = copy.deepcopy(ensemble)
    with torch.no_grad():
        for part in louder.members:
            part.head.weight.mul_(factor)
            part.head.bias.mul_(factor)
    return louder


@pytest.fixture(scope="module")
def plain() -> Ensemble:
    return trained()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    return digits()[2:]


@pytest.fixture(scope="module")
def of_plain(plain: Ensemble, data: tuple[Tensor, Tensor]) -> Audit:
    return audit(plain, *data, BALL)


@pytest.fixture(scope="module")
def of_scaled(plain: Ensemble, data: tuple[Tensor, Tensor]) -> Audit:
    return audit(scaled(plain, 20), *data, BALL, autoattack=False)


def states(result: Audit) -> dict[str, str]:
    return {check.name: check.state for check in result.checks}


def test_a_plain_ensemble_is_not_flagged(of_plain: Audit) -> None:
    assert of_plain.verdict == "no sign of masking"
    assert set(states(of_plain).values()) == {"fine"}
    assert of_plain.lowest >= of_plain.usual - 0.05


def test_the_same_ensemble_with_logits_times_twenty_is_flagged(of_plain: Audit, of_scaled: Audit) -> None:
    assert of_scaled.verdict == "masked"
    assert of_scaled.lowest == pytest.approx(of_plain.lowest, abs=0.1)  # and no more robust than before
    found = states(of_scaled)
    assert found["zero gradients"] == "notable"
    assert found["larger radii, margin loss"] == "masking"
    assert found["radius that breaks everything"] == "masking"


@pytest.mark.parametrize("factor", [50.0, 1000.0])
def test_stronger_scaling_is_flagged_by_more_checks(
    factor: float, plain: Ensemble, data: tuple[Tensor, Tensor]
) -> None:
    result = audit(scaled(plain, factor), *data, BALL, **QUICK)
    assert result.verdict == "masked"
    evidence = [name for name, state in states(result).items() if state == "masking"]
    assert {"margin loss", "black box", "rescaled twin", "larger radii, margin loss"} <= set(evidence)


def test_l2_audits_agree(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    ball = sp.L2(0.8, box=(0, 1))
    assert audit(plain, *data, ball, **QUICK).verdict == "no sign of masking"
    assert audit(scaled(plain, 100), *data, ball, **QUICK).verdict == "masked"


def test_priority_dropout_grows_the_logits_unless_rescaled(data: tuple[Tensor, Tensor]) -> None:
    """The paper's mode drops units in training and none in evaluation; the audit gives a verdict on both modes."""
    gaps, results = [], []
    ensembles = [trained(LaplacePriorityDropout(gamma=1000.0, rescale=rescale)) for rescale in (False, True)]
    for ensemble in ensembles:
        top = ensemble(data[0]).logits.topk(2, dim=1).values
        gaps.append((top[:, 0] - top[:, 1]).median().item())
        results.append(audit(ensemble, *data, BALL, **QUICK))
    assert gaps[0] > 1.5 * gaps[1]
    assert results[1].verdict == "no sign of masking"
    # With larger logits still, the usual figure rises far above what the other attacks leave: .79 against .42.
    grown = audit(scaled(ensembles[0], 100), *data, BALL, **QUICK)
    assert grown.verdict == "masked"
    assert grown.usual > results[0].usual + 0.2
    assert grown.usual > grown.lowest + 0.2


class Staircase(nn.Module):
    """Rounds its input: the gradient is zero everywhere although nothing is saturated."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net((x * 15).round() / 15)


def test_shattered_gradients_are_flagged_too(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    result = audit(Staircase(plain), *data, BALL, **QUICK)
    assert result.verdict == "masked"
    assert states(result)["black box"] == "masking"
    assert states(result)["zero gradients"] == "notable"


class Probabilities(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits.softmax(1)


class Noisy(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x + 0.05 * torch.randn_like(x))


def test_probabilities_and_noise_are_noticed(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    x, y = data[0][:60], data[1][:60]
    quick: dict[str, Any] = {"autoattack": False, "steps": 5, "restarts": 1, "queries": 20}
    assert states(audit(Probabilities(plain), x, y, BALL, **quick))["outputs"] == "notable"
    assert states(audit(Noisy(plain), x, y, BALL, **quick))["randomness"] == "notable"
    assert "randomness" not in states(audit(Noisy(plain), x, y, BALL, samples=3, **quick))


def test_batch_norm_left_in_training_is_noticed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    x = torch.rand(40, 6)
    said = {"steps": 3, "restarts": 1, "queries": 5, "autoattack": False}
    assert states(audit(net, x, net.eval()(x).argmax(1), sp.Linf(0.02, box=(0, 1)), **said)).get("mode") is None
    assert states(audit(net.train(), x, net(x).argmax(1), sp.Linf(0.02, box=(0, 1)), **said))["mode"] == "notable"


def test_the_lowest_figure_counts_every_attack(of_plain: Audit) -> None:
    assert of_plain.lowest <= min(result.plain for result in of_plain.attacks.values())
    assert of_plain.usual <= of_plain.clean


def test_results_repeat_and_the_generator_is_left_alone(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    quick: dict[str, Any] = {"autoattack": False, "steps": 5, "restarts": 2, "queries": 20}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = audit(plain, *data, BALL, **quick).to_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    assert audit(plain, *data, BALL, **quick).to_dict() == first
    with torch.inference_mode():
        assert audit(plain, data[0] + 0, data[1] + 0, BALL, **quick).to_dict() == first


def test_the_model_is_left_alone(plain: Ensemble, data: tuple[Tensor, Tensor], of_scaled: Audit) -> None:
    assert not plain.training
    assert all(p.grad is None for p in plain.parameters())
    assert all(p.dtype == torch.float32 for p in plain.parameters())


def test_progress_is_told_in_order(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    shares: list[float] = []
    audit(
        plain, data[0][:30], data[1][:30], BALL, steps=3, restarts=1, queries=5, autoattack=False,
        progress=lambda what, share: shares.append(share),
    )  # fmt: skip
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0


def test_text_html_and_data_say_the_same(of_scaled: Audit) -> None:
    text, data = str(of_scaled), json.loads(json.dumps(of_scaled.to_dict()))
    assert "MASKED" in text.splitlines()[0]
    assert f"{100 * of_scaled.lowest:5.1f} %" in text
    assert data["verdict"] == "masked"
    assert data["checks"][0]["name"] == "zero gradients"
    reader = _Cells()
    reader.feed(of_scaled.to_html())
    assert reader.open == []
    for check in of_scaled.checks:
        assert check.meaning in reader.cells
    assert of_scaled._repr_html_() == of_scaled.to_html()


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def outcome(survived: Tensor) -> RobustAccuracy:
    return RobustAccuracy(torch.ones_like(survived), survived, torch.zeros(len(survived)), torch.zeros(len(survived)))


def test_beating_needs_size_and_significance() -> None:
    usual = outcome(torch.arange(100) < 50)
    assert beats(outcome(torch.arange(100) < 40), usual, 0.05)
    assert not beats(outcome(torch.arange(100) < 46), usual, 0.05)  # four points are within the tolerance
    few = outcome(torch.arange(10) < 5)
    assert not beats(outcome(torch.arange(10) < 3), few, 0.05)  # twenty points, but two examples
    torch.manual_seed(0)
    mixed = torch.rand(100) < 0.44  # a different half survives: chance explains a few points
    assert not beats(outcome(mixed), outcome(torch.rand(100) < 0.5), 0.0)


def test_output_checks_read_the_saturation_point() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]] * 4)
    flat, gap = output_checks(logits, logits, 1.0, 1, 0.05)
    assert flat.state == gap.state == "notable"
    assert "100 % > 17" in gap.found
    assert output_checks(logits.double(), logits.double(), 1.0, 1, 0.05)[1].found.endswith("0 % > 37")
    live = torch.tensor([[16.0, 0.0, 0.0]])  # 17 is where the float32 softmax rounds to one
    assert live.softmax(1)[0, 0] < 1
    assert logits.softmax(1)[0, 0] == 1


def test_two_classes_and_bad_arguments() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    x = torch.rand(40, 6)
    y = net(x).argmax(1)
    assert audit(net, x, y, sp.Linf(0.05, box=(0, 1)), steps=10, restarts=2, queries=50).verdict == "no sign of masking"
    with pytest.raises(ValueError, match="an audit needs a radius above 0"):
        audit(net, x, y, sp.Linf(0.0))
    with pytest.raises(TypeError, match=r"audit\(ball=0.1\): a number does not say which norm"):
        audit(net, x, y, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"AutoAttack\(ball=Linf.*data in \[0, 1\] only; write box=\(0, 1\)"):
        audit(net, x, y, sp.Linf(0.1, box=(0, 2)), autoattack=True)
    with pytest.raises(ValueError, match=r"outside box=\(0, 1\)"):
        audit(net, 3 * x, y, BALL)
    assert audit(net, 3 * x, net(3 * x).argmax(1), sp.Linf(0.05), **QUICK).verdict == "no sign of masking"


def test_the_usual_attack_is_the_published_one(plain: Ensemble, data: tuple[Tensor, Tensor], of_plain: Audit) -> None:
    torch.manual_seed(0)
    alone = robust_accuracy(plain, PGD(BALL), *data)
    assert alone.plain == pytest.approx(of_plain.usual, abs=0.03)


class Changed(nn.Module):
    """A network whose input or answer goes through a function."""

    def __init__(self, net: nn.Module, change: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net, x)


def test_a_quantiser_that_cannot_be_differentiated_is_flagged(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    steps = Changed(plain, lambda net, x: net(torch.bucketize(x, torch.linspace(0, 1, 16)).float() / 15))
    result = audit(steps, *data, BALL, **QUICK)
    assert result.verdict == "masked"
    assert states(result)["black box"] == "masking"
    assert states(result)["zero gradients"] == "notable"
    assert {c.name: c.found for c in result.checks}["float64"] == "left out"  # the quantiser gives float32


def test_a_model_that_casts_its_input_is_audited_without_float64(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    result = audit(Changed(plain, lambda net, x: net(x.float())), *data, BALL, **QUICK)
    assert result.verdict == "no sign of masking"
    assert {c.name: c.found for c in result.checks}["float64"] == "left out"


@pytest.mark.parametrize("tied", [True, False])
def test_a_constant_predictor_hides_nothing(tied: bool, plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    answer = torch.arange(10.0)
    constant = Changed(plain, lambda net, x: answer.expand(len(x), -1) + (0 * net(x).logits if tied else 0))
    result = audit(constant, *data, BALL, **QUICK)
    assert result.verdict == "suspicious"
    assert result.clean == result.usual == result.lowest
    assert "one and the same answer to every input" in result.summary
    assert "go further" not in result.summary


def test_nan_outputs_are_named_and_count_as_wrong(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    result = audit(Changed(plain, lambda net, x: net(x).logits * torch.nan), *data, BALL, **QUICK)
    assert result.verdict == "suspicious"
    assert result.clean == 0
    assert states(result)["outputs"] == "notable"
    assert states(result)["zero gradients"] == "notable"  # a gradient of nan moves no attack
    assert "randomness" not in states(result)  # nan differs from itself, that is no noise
    assert "100.0 % not finite" in str(result)


def test_masking_seen_only_where_any_input_is_allowed_says_so() -> None:
    verdict, summary = conclude([Check(LIMIT, "50 % left", "still fails", "masking")], 0.9, 0.8, 0.8, False)
    assert verdict == "masked"
    assert "the usual attack fails even where any input is allowed" in summary


def test_noise_with_two_classes_and_double_precision_run_through_autoattack() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    x = torch.rand(12, 6)
    noisy = Changed(net, lambda net, x: net(x + 0.01 * torch.randn_like(x)))
    small: dict[str, Any] = {"steps": 3, "restarts": 1, "queries": 5}
    assert "AutoAttack" not in audit(noisy, x, net(x).argmax(1), sp.Linf(0.02, box=(0, 1)), samples=3, **small).attacks
    double = nn.Linear(6, 4).double()
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    assert (
        "AutoAttack"
        in audit(double, x.double(), double(x.double()).argmax(1), sp.Linf(0.02, box=(0, 1)), **small).attacks
    )


def test_a_twin_with_larger_logits_shows_a_weak_attack_and_no_masking() -> None:
    """Cross-entropy is a blunt loss where logits are small, as after adversarial training: nothing is hidden there."""
    usual, further = outcome(torch.arange(100) < 50), outcome(torch.arange(100) < 30)
    results = {USUAL: usual, LONG: usual, TWIN: further}
    sharper, same = (attack_checks(results, 0.05, sharper) for sharper in (True, False))
    assert {c.name: c.state for c in sharper}["rescaled twin"] == "notable"
    assert {c.name: c.state for c in same}["rescaled twin"] == "masking"
    verdict, summary = conclude(sharper, 0.9, 0.5, 0.3, True)
    assert verdict == "attack too weak"
    assert "hidden, not harmless" not in summary


def test_small_logits_are_not_called_hidden(plain: Ensemble, data: tuple[Tensor, Tensor]) -> None:
    result = audit(scaled(plain, 0.05), *data, BALL, **QUICK)
    assert result.lowest < result.usual - 0.05
    assert states(result)["rescaled twin"] == "notable"


def test_token_ids_are_told_where_to_be_attacked() -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    ids, targets = torch.randint(0, 9, (5, 3)), torch.zeros(5).long()
    with pytest.raises(TypeError, match=r"ids cannot be moved; audit what follows the embedding"):
        audit(net, ids, targets, sp.L2(0.5))
    found = audit(net[1:], net[0](ids).detach(), targets, sp.L2(0.5), autoattack=False, steps=2, restarts=1, queries=5)
    assert found.lowest <= found.clean
