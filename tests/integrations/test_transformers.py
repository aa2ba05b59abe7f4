import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from sparring.nn.attention import masked_softmax  # noqa: E402
from sparring.passes.one import perturbed_call  # noqa: E402
from sparring.sites.attention.scores import Scores  # noqa: E402

IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
FAMILIES = {
    "bert": lambda kernel: transformers.BertConfig(**SMALL, attn_implementation=kernel),
    "roberta": lambda kernel: transformers.RobertaConfig(**SMALL, pad_token_id=0, attn_implementation=kernel),
    "electra": lambda kernel: transformers.ElectraConfig(**SMALL, embedding_size=8, attn_implementation=kernel),
    "albert": lambda kernel: transformers.AlbertConfig(**SMALL, embedding_size=8, attn_implementation=kernel),
    "distilbert": lambda kernel: transformers.DistilBertConfig(
        vocab_size=30,
        dim=8,
        n_layers=2,
        n_heads=2,
        hidden_dim=16,
        max_position_embeddings=16,
        attn_implementation=kernel,
    ),
}


def build(family="bert", kernel="eager"):
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(FAMILIES[family](kernel)).double().eval()


def run(model, placed=None, site=None, ids=IDS, mask=MASK, **more):
    slots = []

    def place(slot):
        slots.append(slot)
        return None if placed is None else placed(slot)

    outputs = perturbed_call(model, {site or Scores(): place}, input_ids=ids, attention_mask=mask, **more)
    return outputs, slots


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", [True, False])
def test_zero_push_changes_nothing(family, kernel, padded):
    model = build(family, kernel)
    mask = MASK if padded else None
    plain = model(input_ids=IDS, attention_mask=mask).logits
    before = model.config.to_dict()
    outputs, slots = run(model, lambda slot: torch.zeros_like(slot.value), mask=mask)
    if kernel == "eager":
        assert torch.equal(outputs.logits, plain)
    torch.testing.assert_close(outputs.logits, plain, rtol=1e-12, atol=1e-12)
    assert [slot.value.shape for slot in slots] == [(2, 2, 5, 5)] * 2
    if padded:
        words = MASK.bool()
        assert torch.equal(slots[0].valid[:, 0], words[:, None, :] & words[:, :, None])
    assert model.config.to_dict() == before
    assert torch.equal(model(input_ids=IDS, attention_mask=mask).logits, plain)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_large_push_moves_the_weights_as_predicted(kernel):
    model = build(kernel="eager")
    push = torch.randn(2, 2, 5, 5, dtype=torch.double) * 4
    outputs, (first, _) = run(
        model, lambda s: push if "layer.0" in s.name else torch.zeros_like(s.value), output_attentions=True
    )
    expected = masked_softmax(first.value + push, MASK.bool()[:, None, None, :])
    torch.testing.assert_close(outputs.attentions[0], expected)
    other, _ = run(build(kernel=kernel), lambda s: push if "layer.0" in s.name else torch.zeros_like(s.value))
    torch.testing.assert_close(other.logits, outputs.logits)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_padded_batch_equals_the_single_sentences(kernel):
    model = build(kernel=kernel)
    push = torch.randn(2, 2, 5, 5, dtype=torch.double)
    together, _ = run(model, lambda s: push)
    alone, _ = run(model, lambda s: push[1:, :, :3, :3], ids=IDS[1:, :3], mask=MASK[1:, :3])
    torch.testing.assert_close(together.logits[1], alone.logits[0])


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_gradients_of_first_and_second_order(kernel):
    model = build(kernel=kernel)
    push = torch.zeros(1, 2, 3, 3, dtype=torch.double, requires_grad=True)

    def logits(push):
        site = Scores(layers=(0,))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return run(model, lambda s: push, site, ids=IDS[:1, :3], mask=MASK[:1, :3])[0].logits

    assert torch.autograd.gradcheck(logits, push)
    assert torch.autograd.gradgradcheck(logits, push)


def test_layers_and_heads_can_be_chosen():
    model = build()
    assert list(Scores().modules(model)) == [f"bert.encoder.layer.{k}.attention.self" for k in range(2)]
    assert list(Scores("bert.encoder.layer.1").modules(model)) == ["bert.encoder.layer.1.attention.self"]
    outputs, slots = run(
        model, lambda s: torch.full_like(s.value, 3.0).tril(), Scores(layers=(1,), heads=(0,)), output_attentions=True
    )
    plain = model(input_ids=IDS, attention_mask=MASK, output_attentions=True)
    assert slots[0].value.shape == (2, 1, 5, 5)
    assert torch.equal(outputs.attentions[0], plain.attentions[0])
    assert torch.equal(outputs.attentions[1][:, 1], plain.attentions[1][:, 1])
    assert (outputs.attentions[1][:, 0] - plain.attentions[1][:, 0]).abs().max() > 0.1


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_causal_model_stays_causal(kernel):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, is_decoder=True, attn_implementation=kernel)
    model = transformers.BertLMHeadModel(config).double().eval()
    for mask in (MASK, torch.ones_like(MASK), None):
        plain = model(input_ids=IDS, attention_mask=mask, use_cache=False).logits
        outputs, (slot, *_) = run(model, lambda s: torch.zeros_like(s.value), mask=mask, use_cache=False)
        torch.testing.assert_close(outputs.logits, plain, rtol=1e-12, atol=1e-12)
        assert torch.equal(slot.valid[0, 0], torch.ones(5, 5).bool().tril())


def test_cross_attention_keeps_the_questions_of_padded_keys():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=16, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BartModel(config).double().eval()
    _, slots = run(model, decoder_input_ids=IDS.flip(1), use_cache=False)
    by_name = {slot.name: slot for slot in slots}
    cross = by_name["decoder.layers.0.encoder_attn"]
    assert cross.valid[1, 0].all(0).tolist() == [True, True, True, False, False]
    assert by_name["encoder.layers.0.self_attn"].valid[1, 0].any(1).tolist() == [True, True, True, False, False]


def test_a_fused_kernel_is_refused_with_the_fix_named():
    model = build()
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match='attn_implementation="eager" or "sdpa"'):
        run(model)


def test_nothing_stays_behind_when_the_pass_fails():
    model = build()
    configs = {name: id(module.config) for name, module in Scores().modules(model).items()}
    with pytest.raises(ValueError, match="does not fit"):
        run(model, lambda s: torch.zeros(7))
    assert {name: id(module.config) for name, module in Scores().modules(model).items()} == configs
    assert not any(m._forward_pre_hooks for m in model.modules())
