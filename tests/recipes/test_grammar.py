"""One grammar: every recipe's words, what is said about others, and objectives that add up."""

import inspect
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import sparring as sp
from methods import METHODS, Method
from scenes import SCENES
from sparring import recipes

SHARED = {
    "model", "loss", "at", "ball", "steps", "step_size", "start", "update", "unroll", "interaction", "by", "penalty", "weight",
    "detach_clean", "share_noise", "keep", "options",
}  # fmt: skip
OWN = {  # words with a meaning of their own, each in the paper's terms
    "smart": {"proximal_weight", "decay"},
    "attention_at": {"direction"},
    "attention_iat": {"direction", "reading"},
    "cutoff": {"unit"},
    "word_iat": {"neighbours", "refresh"},
    "expectation_linear": {"train_on"},
    "adversarial_dropout": {"restarts", "paper_algorithm", "through_scale", "both_ways"},
    "learnable_bernoulli": {"estimator", "joint", "prior_scale", "dataset_size", "weights"},
    "adversarial_weight_perturbation": {"weights", "weight_ball"},
}
NAMES = [name for name in recipes.__all__ if name not in ("ramp_up", "simultaneous")]
EXCHANGEABLE = {
    "adversarial_training", "vat", "salt", "smart", "trades", "mart", "logit_pairing", "attention_at", "attention_iat", "word_iat", "adversarial_dropout",
    "adversarial_weight_perturbation",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_speaks_the_grammar(name: str) -> None:
    parameters = inspect.signature(getattr(recipes, name)).parameters
    first = list(parameters)[:3]
    assert first == ["model", "loss", "at"]
    after = list(parameters.values())[3:]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in after), "keyword-only after at"
    assert set(parameters) <= SHARED | OWN.get(name, set())
    assert ("by" in parameters) == (name in EXCHANGEABLE)
    if "ball" in parameters:
        assert hasattr(parameters["ball"].default, "radius")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_explains_every_word(name: str) -> None:
    recipe = getattr(recipes, name)
    text = inspect.getdoc(recipe) or ""
    assert ">>>" in text, "an example that runs"
    for word in inspect.signature(recipe).parameters:
        assert f"\n    {word}:" in text, word


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda m: recipes.salt(m, sp.cross_entropy, epsilon=1), r'salt\(\) has no word "epsilon": did you mean ball=sp.L2\(...\)\?'),
        (lambda m: recipes.vat(m, sp.cross_entropy, xi=1), r'vat\(\) has no word "xi": did you mean start='),
        (lambda m: recipes.vat(m, sp.cross_entropy, wieght=1), r'vat\(\) has no word "wieght": did you mean weight='),
        (lambda m: recipes.adversarial_dropout(m, sp.cross_entropy, fraction=0.1), r"did you mean ball=sp.Flips\(...\)"),
        (lambda m: recipes.vat(m, sp.cross_entropy, ball=1.0), r"vat\(ball=1.0\): .*write ball=sp.L2\(1.0\)"),
        (lambda m: recipes.smart(m, sp.cross_entropy, ball=1), r"smart\(ball=1\): .*write ball=sp.Linf\(1\)"),
        (lambda m: recipes.vat(m, sp.cross_entropy, None, sp.L2(1.0)), r"takes everything else by name"),
        (
            lambda m: recipes.adversarial_training(m, sp.cross_entropy, ball=sp.L2(9.0), by=sp.PGD(sp.L2(0.1))),
            r"adversarial_training\(by=..., ball=...\): .*give one of the two",
        ),
        (lambda m: recipes.vat(m, sp.cross_entropy, terms=()), r"put together with a \+ b"),
        (lambda m: recipes.vat(m, sp.cross_entropy, zebra=1), r'vat\(\) has no word "zebra": it takes at, ball'),
    ],
)  # fmt: skip
def test_a_foreign_word_is_answered_in_the_recipes_own_name(build: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        build(model())


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum")])
def test_a_loss_that_averages_is_told_about_reduction(loss: nn.Module) -> None:
    with pytest.raises(ValueError, match='reduction="none"'):
        sp.Objective(model(), loss)
    with pytest.raises(ValueError, match='reduction="none"'):
        sp.Objective(model(), nn.functional.cross_entropy)(torch.randn(2, 4), torch.tensor([0, 1]))
    assert (
        sp.Objective(model(), nn.CrossEntropyLoss(reduction="none"))(torch.randn(2, 4), torch.tensor([0, 1])).dim() == 0
    )


# -- a + b -----------------------------------------------------------------------------------------------------


def _losses(objective: sp.Objective, batch: Any) -> list[torch.Tensor]:
    found = []
    for loss in objective.steps(*batch):
        loss.backward()
        found.append(loss.detach())
    return found + [torch.zeros_like(p) if p.grad is None else p.grad for p in objective.model.parameters()]


def _zero(method: Method, scene: Any, net: nn.Module) -> sp.Objective:
    options = {"proximal_weight": 0.0} if method.name == "smart" else {}
    return method.build(scene, net, weight=0.0, **options)


def _pairs() -> list[Any]:
    cases = []
    for index, a in enumerate(METHODS):
        for other, b in enumerate(METHODS):
            shared = [s for s in a.scenes if s in b.scenes]
            if shared:  # every pair once, on one of their scenes in turn
                scene = shared[(index + other) % len(shared)]
                cases.append(pytest.param(a, b, scene, id=f"{a.name}+{b.name}-{scene}"))
    return cases


def _played(a: Method, b: Method | None, where: str) -> list[torch.Tensor]:
    """Losses and gradients of a, with b at weight zero beside it."""
    scene = SCENES[where]
    net, *batch = scene.setup(dtype=torch.float32)
    objective = a.build(scene, net)
    if b is not None:
        objective = objective + _zero(b, scene, net)
    torch.manual_seed(4)
    return _losses(objective, batch)


_alone = cache(lambda a, where: _played(a, None, where))


@pytest.mark.parametrize(("a", "b", "where"), _pairs())
def test_a_plus_b_at_weight_zero_is_a_bit_for_bit(a: Method, b: Method, where: str) -> None:
    alone, both = _alone(a, where), _played(a, b, where)
    assert len(alone) == len(both)
    assert all(map(torch.equal, alone, both))


def test_the_supervised_loss_counts_once_and_each_part_keeps_its_weight() -> None:
    scene = SCENES["lstm"]
    net, *batch = scene.setup()
    net.eval()
    a = recipes.fraternal_dropout(net, scene.loss, keep=0.7, weight=2.0)
    b = recipes.vat(net, scene.loss, at="embedding", weight=0.5)
    both = a + b
    torch.manual_seed(0)
    total = float(both(*batch).detach())
    found = both.diagnostics
    torch.manual_seed(0)
    alone = float(a(*batch).detach())
    assert total == pytest.approx(alone + 0.5 * found["vat/penalty"], rel=1e-9)
    assert [term.name for term in both.terms] == ["fraternal_dropout", "vat"]


def test_what_cannot_go_together_says_why() -> None:
    net = model()
    other = model()
    vat = recipes.vat(net, sp.cross_entropy)
    with pytest.raises(ValueError, match="same model"):
        vat + recipes.vat(other, sp.cross_entropy)
    masks = recipes.variational_dropout(net, sp.cross_entropy, at=sp.Mask(), keep=0.5)
    twice = recipes.fraternal_dropout(net, sp.cross_entropy, at=sp.Mask(), keep=0.5)
    with pytest.raises(ValueError, match="variational_dropout and fraternal_dropout each replace the supervised loss"):
        masks + twice
    with pytest.raises(ValueError, match="free_lb does not go together with vat: it shares its backward passes"):
        recipes.free_lb(net, sp.cross_entropy) + vat
    with pytest.raises(ValueError, match="two different ones"):
        recipes.adversarial_training(net, sp.cross_entropy) + recipes.adversarial_training(net, sp.squared_loss)
    with pytest.raises(ValueError, match="contradict each other"):
        recipes.vat(net, sp.cross_entropy, measure_noise_every=2) + recipes.vat(
            net, sp.cross_entropy, measure_noise_every=3
        )


def test_a_label_free_part_takes_the_others_loss() -> None:
    net = model()
    both = recipes.entropy(net, sp.squared_loss) + recipes.adversarial_training(net, sp.cross_entropy)
    assert both.loss is sp.cross_entropy


def test_terms_of_one_kind_keep_their_diagnostics_apart() -> None:
    net = model()
    term = sp.Term(sp.Output("0"), sp.Noise(sp.L2(0.1)), sp.kl)
    objective = sp.Objective(net, sp.cross_entropy, term, term, sp.Entropy(), sp.Entropy(0.5))
    objective(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    keys = set(objective.diagnostics)
    assert {"noise/penalty", "noise.2/penalty", "entropy/penalty", "entropy.2/penalty"} <= keys


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_key_of_the_diagnostics_suits_every_logger(method: Method) -> None:
    import re

    scene = SCENES[method.scenes[0]]
    net, *batch = scene.setup(dtype=torch.float32)
    objective = method.build(scene, net)
    _losses(objective, batch)
    assert all(re.fullmatch(r"[a-z0-9_./-]+", key) for key in objective.diagnostics)
