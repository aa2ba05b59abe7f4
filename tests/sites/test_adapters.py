"""Attention layers of many families show their scores; a user's own layer, too."""

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.sites.attention import registry

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}


def gemma2(transformers):
    config = transformers.Gemma2Config(**SMALL, head_dim=4, num_key_value_heads=1, attn_logit_softcapping=0.5, pad_token_id=0, attn_implementation="eager")  # fmt: skip
    return transformers.Gemma2ForSequenceClassification(config)


def gpt_oss(transformers):
    config = transformers.GptOssConfig(**SMALL, head_dim=4, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0, sliding_window=16, attn_implementation="eager")  # fmt: skip
    return transformers.GptOssForSequenceClassification(config)


def deberta(transformers):
    config = transformers.DebertaConfig(**SMALL, pos_att_type=["c2p", "p2c"], relative_attention=True)
    return transformers.DebertaForSequenceClassification(config)


def deberta_v2(transformers):
    config = transformers.DebertaV2Config(**SMALL, pos_att_type=["c2p", "p2c"], relative_attention=True)
    return transformers.DebertaV2ForSequenceClassification(config)


def xlnet(transformers):
    config = transformers.XLNetConfig(vocab_size=30, d_model=8, n_layer=2, n_head=2, d_inner=16, num_labels=3)
    return transformers.XLNetForSequenceClassification(config)


FAMILIES = {f.__name__: f for f in (gemma2, gpt_oss, deberta, deberta_v2, xlnet)}


@pytest.fixture(params=FAMILIES)
def model(request) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    torch.manual_seed(0)
    model = FAMILIES[request.param](transformers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def weights_of(outputs: object, layer: int) -> Tensor:
    weights = outputs.attentions[layer]  # type: ignore[attr-defined]
    return weights if weights.shape[0] == 2 else weights.permute(2, 3, 0, 1)  # XLNet hands them out time first


def test_zero_push_changes_nothing_and_a_push_moves_the_weights_as_predicted(model: nn.Module) -> None:
    inputs = {"input_ids": IDS, "attention_mask": MASK, "output_attentions": True}
    plain = model(**inputs)
    slots: list[sp.Slot] = []
    zero = sp.perturbed_call(model, {sp.Scores(): lambda s: slots.append(s) or torch.zeros_like(s.value)}, **inputs)
    torch.testing.assert_close(zero.logits, plain.logits)
    assert len(slots) == 2
    valid = slots[0].valid.expand(2, slots[0].valid.shape[1], 5, 5)[:, 0]
    words = MASK.bool()
    assert not (valid & ~(words[:, None, :] & words[:, :, None])).any(), "padding neither asks nor answers"
    assert valid[0].diagonal().all()
    push = torch.where(slots[0].valid, torch.randn_like(slots[0].value) * 3, 0.0)
    site = sp.Scores(layers=(0,))
    pushed = weights_of(sp.perturbed_call(model, {site: push}, **inputs), 0)
    before = weights_of(plain, 0)
    # a push p multiplies the odds of two keys by exp(p1 - p2), whatever else happened to the scores
    log = lambda w: (w.clamp_min(1e-30)).log()
    change = log(pushed) - log(before) - push
    for b, q, k in [(0, 4, 0), (0, 4, 2), (1, 2, 0), (1, 2, 1)]:
        torch.testing.assert_close(change[b, :, q, k], change[b, :, q, q], rtol=1e-3, atol=1e-3)


def test_a_padded_batch_equals_the_single_sentence(model: nn.Module) -> None:
    pushes = [torch.randn(2, 2, 5, 5) for _ in range(2)]
    site, names = sp.Scores(), list(sp.Scores().modules(model))
    together = sp.perturbed_call(
        model, {site: {n: p.clone() for n, p in zip(names, pushes)}}, input_ids=IDS, attention_mask=MASK
    )
    alone = sp.perturbed_call(
        model, {site: {n: p[1:, :, :3, :3].clone() for n, p in zip(names, pushes)}}, input_ids=IDS[1:, :3], attention_mask=MASK[1:, :3]
    )  # fmt: skip
    if "XLNet" in type(model).__name__:
        pytest.skip("XLNet reads its summary at the last position, padding or not")
    torch.testing.assert_close(together.logits[1], alone.logits[0], rtol=1e-4, atol=1e-5)


def test_a_recipe_plays_at_the_scores_and_leaves_nothing_behind(model: nn.Module) -> None:
    model.train()
    objective = sp.recipes.attention_at(model, sp.cross_entropy, ball=sp.L2(1.0))
    side = -1 if "XLNet" in type(model).__name__ else 1  # XLNet is padded on the left: its summary is the last position
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    inputs = {key: torch.stack([row[0], row[1].roll(2)]) if side < 0 else row for key, row in inputs.items()}
    objective(inputs, torch.tensor([0, 2])).backward()
    assert objective.diagnostics["attention_at/norm"] == pytest.approx(1.0, rel=1e-3)
    assert not any("forward" in m.__dict__ or m._forward_pre_hooks for m in model.modules())


def test_swin_windows_belong_to_their_example() -> None:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    config = transformers.SwinConfig(image_size=16, patch_size=2, num_channels=1, embed_dim=8, depths=[2], num_heads=[2], window_size=4, num_labels=3)  # fmt: skip
    model = transformers.SwinForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    x, site = torch.randn(3, 1, 16, 16), sp.Scores()
    plain, seen = sp.perturbed_call(model, {site: {}}, pixel_values=x, record=True)
    assert [value.shape for value in seen[site].values()] == [(3, 2, 4 * 16, 16)] * 2

    def place(slot: sp.Slot) -> Tensor:
        push = torch.zeros_like(slot.value)
        push[1] = torch.randn_like(push[1])
        return push

    moved = (sp.perturbed_call(model, {site: place}, pixel_values=x).logits - plain.logits).abs().sum(1)
    assert moved[0] < 1e-6
    assert moved[2] < 1e-6
    assert moved[1] > 1e-3


class Own(nn.Module):
    """A made-up layer: keys compete for each query through a softmax."""

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        scores = x @ x.transpose(1, 2)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None], -1e9)
        return torch.softmax(scores, dim=-1) @ x


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_adapters", list(registry._adapters))


@pytest.mark.usefixtures("clean_registry")
def test_a_layer_of_the_users_is_taught_in_one_line() -> None:
    model = nn.Sequential(Own(), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="no attention layer whose scores can be reached"):
        sp.recipes.attention_at(model, sp.cross_entropy)
    sp.sites.register_attention(Own)(sp.sites.through_softmax)
    x = torch.randn(2, 3, 2)
    push = torch.randn(2, 3, 3)
    expected = (x @ x.transpose(1, 2) + push).softmax(-1) @ x
    torch.testing.assert_close(sp.perturbed_call(model[0], {sp.Scores(): push}, x), expected)
    hidden = torch.tensor([[False, False, True], [False, True, True]])
    _, seen = sp.perturbed_call(model[0], {sp.Scores(): {}}, x, hidden, record=True)
    assert (seen[sp.Scores()]["scores"][0, :, 2] == 0).all()
    objective = sp.recipes.attention_at(model, sp.cross_entropy, ball=sp.L2(0.5))
    objective(x, torch.tensor([0, 2])).backward()
    assert objective.diagnostics["attention_at/norm"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.usefixtures("clean_registry")
def test_a_function_of_the_users_counts_before_ours() -> None:
    asked = []

    @sp.sites.register_attention("torch.nn.modules.activation.MultiheadAttention")
    def mine(module: nn.Module, visit):
        asked.append(module)
        return lambda: None

    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(RuntimeError, match="never reached"):
        sp.perturbed_call(layer, {sp.Scores(): {}}, *[torch.randn(1, 3, 4)] * 3)
    assert asked == [layer]


@pytest.mark.usefixtures("clean_registry")
def test_a_layer_without_a_softmax_is_refused() -> None:
    class Linear(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.transpose(1, 2) @ x

    sp.sites.register_attention(Linear)(sp.sites.through_softmax)
    with pytest.raises(ValueError, match="took no softmax"):
        sp.perturbed_call(Linear(), {sp.Scores(): {}}, torch.randn(1, 3, 2))
    with pytest.raises(TypeError, match=r"an nn\.Module"):
        sp.sites.register_attention(int)(sp.sites.through_softmax)
