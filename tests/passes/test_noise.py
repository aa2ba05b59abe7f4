"""Noise from outside torch's generators is shared between the passes of a step."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.nn.randomness import Watch


class Outside(nn.Module):
    """Masks features as SpecAugment does: by numpy's or Python's global generator."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.inner, self.head, self.source = nn.Linear(8, 8), nn.Linear(8, 3), source

    def forward(self, x: Tensor) -> Tensor:
        draw = np.random.random if self.source == "numpy" else random.random
        keep = torch.tensor([[draw() > 0.5 for _ in range(8)] for _ in range(len(x))])
        return self.head(self.inner(x) * keep)


@pytest.mark.parametrize("source", ["numpy", "python"])
def test_a_pass_with_nothing_placed_repeats_the_clean_one(source: str) -> None:
    model, site = Outside(source), sp.Output("inner")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    step = objective.begin(torch.randn(5, 8), torch.arange(5) % 3, None, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros(5, 8)]}
    assert torch.equal(step.run(zeros), step.outputs)
    assert torch.equal(step.run(zeros, replay=False), step.outputs)
    assert not torch.equal(step.run(zeros, noise=None), step.outputs), "fresh noise differs"


@pytest.mark.parametrize("source", ["numpy", "python"])
def test_a_step_draws_as_often_as_a_plain_pass(source: str) -> None:
    model = Outside(source)
    read = np.random.random if source == "numpy" else random.random
    random.seed(0), np.random.seed(0)
    model(torch.randn(5, 8))
    expected = read()
    random.seed(0), np.random.seed(0)
    sp.recipes.vat(model, sp.cross_entropy, "inner")(torch.randn(5, 8), torch.arange(5) % 3)
    assert read() == expected


@pytest.mark.parametrize("source", ["numpy", "python"])
@pytest.mark.parametrize("name", ["vat", "adversarial_weight_perturbation", "free_lb"])
def test_noise_of_its_own_is_the_same_in_all_passes_of_a_term(source: str, name: str) -> None:
    """The player climbs the very loss that is charged: one draw for the clean pass, if there is one, and one for the rest."""
    model = Outside(source)
    seen: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach() != 0))
    words = {} if name == "free_lb" else {"share_noise": False}
    build = getattr(sp.recipes, name)
    if name == "free_lb":
        words["steps"] = 3
    build(model, sp.cross_entropy, "inner", **words)(torch.randn(5, 8), torch.arange(5) % 3)
    clean = [] if name == "free_lb" else seen[:1]
    later = seen[len(clean) :]
    assert len(later) >= 2
    assert all(torch.equal(later[0], other) for other in later)
    assert not any(torch.equal(later[0], first) for first in clean)


class Normal(nn.Module):
    """Scales features by one normal number: both generators make two at a time, and keep the second for the next call."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.inner, self.head, self.source = nn.Linear(8, 8), nn.Linear(8, 3), source

    def forward(self, x: Tensor) -> Tensor:
        number = np.random.normal() if self.source == "numpy" else random.gauss(0.0, 1.0)
        return self.head(self.inner(x) * number)


@pytest.mark.parametrize("source", ["numpy", "python"])
@pytest.mark.parametrize("drawn", [0, 1])
def test_normal_numbers_that_come_in_pairs_are_shared(source: str, drawn: int) -> None:
    random.seed(0), np.random.seed(0)
    for _ in range(drawn):
        np.random.normal(), random.gauss(0.0, 1.0)
    model, site = Normal(source), sp.Output("inner")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    for _ in range(3):
        step = objective.begin(torch.randn(5, 8), torch.arange(5) % 3, None, objective.terms)
        step.begin()
        zeros = {site: [torch.zeros(5, 8)]}
        assert torch.equal(step.run(zeros), step.outputs)
        assert torch.equal(step.run(zeros), step.outputs), "and again"


@pytest.mark.parametrize("source", ["numpy", "python"])
def test_normal_numbers_go_on_after_a_step_as_after_a_plain_pass(source: str) -> None:
    model = Normal(source)
    read = np.random.normal if source == "numpy" else lambda: random.gauss(0.0, 1.0)
    random.seed(0), np.random.seed(0)
    for _ in range(3):
        model(torch.randn(5, 8))
    expected = [read() for _ in range(3)]
    random.seed(0), np.random.seed(0)
    objective = sp.recipes.vat(model, sp.cross_entropy, "inner")
    for _ in range(3):
        objective(torch.randn(5, 8), torch.arange(5) % 3)
    assert [read() for _ in range(3)] == expected


@pytest.mark.parametrize("share", [True, False])
def test_another_kind_of_numpy_generator_is_shared_as_well(share: bool) -> None:
    model = Outside("numpy")
    seen: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach() != 0))
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        objective = sp.recipes.vat(model, sp.cross_entropy, "inner", share_noise=share)
        objective(torch.randn(5, 8), torch.arange(5) % 3)
    finally:
        np.random.set_bit_generator(before)
    clean, *later = seen
    assert len(later) == 2
    assert torch.equal(later[0], later[1])
    assert torch.equal(clean, later[0]) is share


def test_only_generators_that_moved_are_put_back() -> None:
    watch = Watch((torch.device("cpu"),))
    assert watch.moved() is None
    np.random.random()
    assert set(watch.moved().outside) == {"numpy"}
    assert not watch.moved().states
    random.random(), torch.rand(1)
    moved = watch.moved()
    assert set(moved.outside) == {"numpy", "python"}
    assert list(moved.states) == [torch.device("cpu")]


def test_spec_augment_of_wav2vec2_is_the_same_in_both_passes() -> None:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    config = transformers.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8),
        conv_stride=(4, 2), conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, mask_time_prob=0.5, mask_time_length=2, mask_time_min_masks=2,
        classifier_proj_size=8, num_labels=3, layerdrop=0.0,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForSequenceClassification(config).train()
    assert config.apply_spec_augment
    site = sp.Output("wav2vec2.feature_projection")
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl))
    step = objective.begin({"input_values": torch.randn(2, 400)}, torch.tensor([0, 2]), None, objective.terms)
    step.begin()
    zeros = {site: [torch.zeros_like(step.slots(site)[0].value)]}
    assert torch.equal(step.run(zeros), step.outputs)
    assert not torch.equal(step.run(zeros, noise=None), step.outputs)


def test_a_model_that_makes_its_input_a_variable_is_refused_with_the_fix() -> None:
    class Wilful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, None]
            x.requires_grad = True
            return self.inner(x)[:, 0]

    with pytest.raises(RuntimeError, match="perturb the output of a later module"):
        sp.recipes.vat(Wilful(), sp.cross_entropy)(torch.randn(2, 4), torch.tensor([0, 2]))
