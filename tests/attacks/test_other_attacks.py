"""Random search, transfer, and the attacks of other libraries behind the same interface."""

import copy
import importlib
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.attacks import (
    FGSM,
    JSMA,
    PGD,
    Attack,
    AutoAttack,
    CarliniWagner,
    Logits,
    RandomSearch,
    Transfer,
    logits_of,
    predictions,
)
from sparring.metrics.robustness import robust_accuracy


def pixels(radius: float, norm: float = inf) -> sp.Ball:
    """The ball of images with pixels in [0, 1]."""
    return {inf: sp.Linf, 2: sp.L2}[norm](radius, box=(0, 1))


@pytest.mark.parametrize("norm", [inf, 2])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_random_search_breaks_what_noise_does_not(
    network: str, norm: float, digits: Any, request: pytest.FixtureRequest
) -> None:
    net, x, y = request.getfixturevalue(network), digits.x[:100], digits.y[:100]
    epsilon = 0.2 if norm == inf else 2.0
    found = RandomSearch(pixels(epsilon, norm), queries=200)(net, x, y)
    assert found.min() >= 0
    assert found.max() <= 1
    assert ((found - x).flatten(1).norm(p=norm, dim=1) <= epsilon + 1e-5).all()
    noise = torch.randn_like(x)
    noise = noise.sign() if norm == inf else noise / noise.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    noisy = (x + epsilon * noise).clamp(0, 1)
    accuracy = [(predictions(net, points) == y).float().mean().item() for points in (found, noisy)]
    assert accuracy[0] < accuracy[1] - 0.2


def test_random_search_on_flat_inputs(digits: Any) -> None:
    net = nn.Linear(64, 10)
    x, y = digits.x.flatten(1)[:40], digits.y[:40]
    y = net(x).argmax(1)
    assert robust_accuracy(net, RandomSearch(pixels(0.3), queries=100), x, y).plain < 0.2


def test_random_search_needs_no_gradient(digits: Any, mlp: nn.Module) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return mlp((x * 20).round() / 20)

    net, x, y = Rounded(), digits.x[:100], digits.y[:100]
    blind = robust_accuracy(net, PGD(pixels(0.2), loss="margin", start=0), x, y)
    seeing = robust_accuracy(net, RandomSearch(pixels(0.2)), x, y)
    assert blind.plain == blind.clean
    assert seeing.plain < 0.5 * seeing.clean


@pytest.mark.parametrize("attack", [JSMA(box=(0, None)), CarliniWagner(box=((0, 0), 1))])  # type: ignore[arg-type]
def test_arts_attacks_say_what_range_they_need(attack: Attack, digits: Any, mlp: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"the attacks of ART need two numbers, such as box=\(0, 1\)"):
        attack(mlp, digits.x[:2], digits.y[:2])


def test_transfer_crafts_on_the_surrogate(digits: Any, mlp: nn.Module, cnn: nn.Module) -> None:
    x, y = digits.x, digits.y
    direct = robust_accuracy(cnn, FGSM(pixels(0.2)), x, y)
    carried = robust_accuracy(cnn, Transfer(FGSM(pixels(0.2)), mlp, kind="II"), x, y)
    assert direct.plain < carried.plain < carried.clean
    assert torch.equal(Transfer(FGSM(pixels(0.2)), mlp)(cnn, x, y), FGSM(pixels(0.2))(mlp, x, y))


def test_all_have_one_interface() -> None:
    attacks: list[Attack] = [
        FGSM(pixels(0.1)),
        PGD(pixels(0.1)),
        RandomSearch(pixels(0.1)),
        JSMA(),
        CarliniWagner(),
        AutoAttack(pixels(0.1)),
    ]
    assert all(callable(attack) for attack in attacks)


def test_jsma_changes_few_pixels(digits: Any, mlp: nn.Module) -> None:
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    x, y = digits.x[:20], digits.y[:20]
    result = JSMA(gamma=0.2, theta=0.5)
    found = result(mlp, x, y)
    assert ((found != x).flatten(1).sum(1) <= 0.2 * 64 + 2).all()  # ART changes pairs
    assert robust_accuracy(mlp, result, x, y).plain < 0.8
    assert all(p.grad is None for p in mlp.parameters())


def test_carlini_wagner_finds_small_perturbations(digits: Any, mlp: nn.Module) -> None:
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    x, y = digits.x[:30], digits.y[:30]
    attack = CarliniWagner(constant=1.0, searches=3, steps=50, learning_rate=0.05)
    result = robust_accuracy(mlp, attack, x, y)
    assert result.plain <= 0.1
    assert result.l2.mean() < 1.5
    assert mlp.training is False


def test_autoattack_is_at_least_as_strong_as_pgd(digits: Any, mlp: nn.Module) -> None:
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    x, y = digits.x[:50], digits.y[:50]
    strong = robust_accuracy(mlp, AutoAttack(pixels(0.1), attacks=("apgd-ce", "apgd-t")), x, y)
    plain = robust_accuracy(mlp, PGD(pixels(0.1)), x, y)
    assert strong.plain <= plain.plain
    assert strong.linf.max() <= 0.1 + 1e-5


@pytest.mark.parametrize(
    ("attack", "package"),
    [
        (JSMA(), "adversarial-robustness-toolbox"),
        (CarliniWagner(), "adversarial-robustness-toolbox"),
        (AutoAttack(pixels(0.1)), "pyautoattack"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    attack: Attack, package: str, digits: Any, mlp: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=rf"{package} is not installed; pip install 'sparring\[robustness\]'"):
        attack(mlp, digits.x[:2], digits.y[:2])


def test_importing_attacks_imports_no_extra() -> None:
    import subprocess
    import sys

    code = "import sys, sparring.attacks; print({'art', 'pyautoattack', 'sklearn'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_logits_of_reads_objects_and_scales(mlp: nn.Module, digits: Any) -> None:
    class Boxed(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return type("Out", (), {"logits": mlp(x)})()

    x = digits.x[:3]
    assert torch.equal(logits_of(Boxed()(x)), mlp(x))
    torch.testing.assert_close(Logits(Boxed(), 4.0)(x), mlp(x) / 4)
    with pytest.raises(ValueError, match=r"\(B, classes\)"):
        logits_of(torch.zeros(2, 3, 4))


def test_one_logit_is_no_answer_of_a_classifier() -> None:
    net, x, y = nn.Linear(4, 1), torch.rand(3, 4), torch.zeros(3, dtype=torch.long)
    for run in (lambda: predictions(net, x), lambda: FGSM(pixels(0.1))(net, x, y)):
        with pytest.raises(ValueError, match=r"shape \(3, 1\).*two at least"):
            run()


def test_logits_may_come_in_a_mapping(mlp: nn.Module, digits: Any) -> None:
    class Mapped(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": mlp(x)}

    x, y = digits.x[:3], digits.y[:3]
    assert torch.equal(FGSM(pixels(0.1))(Mapped(), x, y), FGSM(pixels(0.1))(mlp, x, y))
    with pytest.raises(TypeError, match="the model returns dict"):
        logits_of({"scores": torch.zeros(2, 3)})


def test_the_other_libraries_attack_models_in_double(digits: Any, mlp: nn.Module) -> None:
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    wide, x, y = copy.deepcopy(mlp).double(), digits.x[:4].double(), digits.y[:4]
    attacks: list[Attack] = [JSMA(), CarliniWagner(constant=1.0), AutoAttack(pixels(0.1), attacks=("apgd-ce",))]
    for attack in attacks:
        found = attack(wide, x, y)
        assert found.dtype == torch.float64
        assert not torch.equal(found.float(), x.float())


def test_autoattack_leaves_the_statistics_and_names_what_few_classes_forbid(digits: Any, cnn: nn.Module) -> None:
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    net = copy.deepcopy(cnn).train()
    before = net[1].running_mean.clone()
    AutoAttack(pixels(0.1), attacks=("apgd-ce",))(net, digits.x[:6], digits.y[:6])
    assert torch.equal(net[1].running_mean, before)
    x, y = torch.rand(4, 6), torch.tensor([0, 1, 0, 1])
    with pytest.raises(
        ValueError, match=r"apgd-t, square cannot attack 3 classes of flat inputs.*\('apgd-ce', 'apgd-dlr'\)"
    ):
        AutoAttack(pixels(0.1))(nn.Linear(6, 3), x, y)
    with pytest.raises(ValueError, match=r"apgd-dlr cannot attack 2 classes.*attacks=\('apgd-ce',\)"):
        AutoAttack(pixels(0.1), version="rand")(nn.Linear(6, 2), x, y)
    parts: dict[int, tuple[str, ...]] = {2: ("apgd-ce",), 3: ("apgd-ce", "apgd-dlr"), 4: ("apgd-ce", "apgd-t")}
    for classes, attacks in parts.items():
        assert AutoAttack(pixels(0.1), attacks=attacks)(nn.Linear(6, classes), x, y).shape == x.shape


def test_jsma_repeats_under_torchs_seed_and_leaves_numpys(digits: Any, mlp: nn.Module) -> None:
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    found = []
    for seed in (4, 4, 5):
        np.random.seed(len(found))
        expected = np.random.RandomState(len(found)).rand()
        torch.manual_seed(seed)
        found.append(JSMA(gamma=0.2, theta=0.5)(mlp, digits.x[:10], digits.y[:10]))
        assert np.random.rand() == expected
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_autoattack_says_a_thing_once(caplog) -> None:
    pytest.importorskip("pyautoattack")
    torch.manual_seed(0)
    sure = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 5), torch.nn.Softmax(-1)).eval()
    x, y = torch.rand(4, 1, 4, 4), torch.zeros(4).long()
    attack = sp.attacks.AutoAttack(sp.Linf(0.05, box=(0, 1)), attacks=("apgd-ce",))
    importlib.import_module("sparring.attacks.toolbox").once.said.clear()
    for _ in range(3):
        attack(sure, x, y)
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "auto-attack" and record.levelname == "WARNING"
    ]
    assert sum("probability distribution" in text for text in said) == 1
