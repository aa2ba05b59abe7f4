"""Dropout without a layer of its own is a site as well."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class Caller(nn.Module):
    """Calls dropout twice itself, and has a layer and a child that do so too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.layer, self.head = Inner(), nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(x, p=0.5, training=self.training)
        x = self.layer(self.inner(x))
        return self.head(nn.functional.dropout(x, 0.25, self.training))


def test_each_call_is_a_slot_of_the_module_that_makes_it() -> None:
    model, x = Caller(), torch.randn(2, 4)
    assert list(sp.Mask().modules(model)) == ["", "inner", "layer"]
    site = sp.Mask("", keep=1.0)
    _, seen = sp.perturbed_call(model.eval(), {site: {}}, x, record=True)
    assert list(seen[site]) == ["mask", "mask#1"]
    first, second = torch.randn(2, 4), torch.randn(2, 4)
    placed = sp.perturbed_call(model, {site: [first, second]}, x)
    torch.testing.assert_close(placed, model.head(x * first * second))


def test_the_layer_draws_as_it_always_does() -> None:
    model, x = Caller(), torch.randn(2, 4)
    torch.manual_seed(3)
    plain = model(x)
    torch.manual_seed(3)
    assert torch.allclose(sp.perturbed_call(model, {sp.Mask(): {}}, x), plain)
    assert "forward" not in model.__dict__


def test_bart_whisper_and_llama() -> None:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    ids = torch.tensor([[5, 6, 7], [8, 9, 2]])
    bart = transformers.BartConfig(
        vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    model = transformers.BartModel(bart).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    site = sp.Mask("encoder.layers.0", keep=1.0)
    plain = model(input_ids=ids).last_hidden_state
    drop = sp.perturbed_call(model, {site: lambda slot: torch.zeros_like(slot.value)}, input_ids=ids).last_hidden_state
    assert (drop - plain).abs().max() > 1e-3
    llama = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        attn_implementation="eager", num_labels=3, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForSequenceClassification(llama).eval()
    site = sp.Mask(keep=1.0)
    assert list(site.modules(model)) == ["model.layers.0.self_attn"]
    _, seen = sp.perturbed_call(model, {site: {}}, record=True, input_ids=ids)
    assert seen[site]["model.layers.0.self_attn"].shape == (2, 2, 3, 3)
    objective = sp.recipes.adversarial_dropout(model, sp.cross_entropy, site, ball=sp.Flips(0.3))
    objective({"input_ids": ids}, torch.tensor([0, 2])).backward()
    assert objective.diagnostics["adversarial_dropout/flips"] >= 1
