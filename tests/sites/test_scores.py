import sys

import pytest
import torch
from torch import nn

from sparring.lab.models.birnn import PairSequence, SingleSequence
from sparring.nn.attention import AdditiveAttention, ScorePoint, masked_softmax
from sparring.passes.one import perturbed_call
from sparring.sites.attention.interface import is_hugging_face_attention
from sparring.sites.attention.multihead import raw_scores
from sparring.sites.attention.scores import Scores
from sparring.sites.attention.softmax import seen_by_others

PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


def seen_by(model, site, *args, placed=None, **kwargs):
    """Output, and the slots that the site showed."""
    slots = []

    def place(slot):
        slots.append(slot)
        return None if placed is None else placed(slot)

    return perturbed_call(model, {site: place}, *args, **kwargs), slots


def multihead(**options):
    torch.manual_seed(0)
    options = {"batch_first": True, **options}
    return nn.MultiheadAttention(8, 2, **options).double().eval()


def words(batch=2, length=5, size=8):
    return torch.randn(batch, length, size, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def test_our_layers_show_scores_and_padding():
    torch.manual_seed(0)
    model = SingleSequence(9, 4, 6).double()
    tokens = torch.tensor([[3, 4, 5], [6, 0, 0]])
    plain = model(tokens)
    outputs, (slot,) = seen_by(model, Scores("attention"), tokens, placed=lambda slot: torch.zeros_like(slot.value))
    assert torch.equal(outputs, plain)
    assert (slot.name, slot.value.shape) == ("attention", (2, 3))
    assert slot.valid.tolist() == [[True, True, True], [True, False, False]]


def test_a_large_push_moves_our_attention_as_predicted():
    torch.manual_seed(0)
    layer = AdditiveAttention(6).double()
    hidden = words(size=6)
    push = torch.randn(2, 5, dtype=torch.double) * 4
    (_, weights), (slot,) = seen_by(layer, Scores(), hidden, valid=~PADDING, placed=lambda slot: push)
    torch.testing.assert_close(weights, masked_softmax(slot.value + push, ~PADDING))


def test_a_pair_model_shows_the_paragraph_only():
    model = PairSequence(9, 4, 6)
    _, (slot,) = seen_by(model, Scores("**"), torch.tensor([[3, 4, 5, 6]]), torch.tensor([[7, 8]]))
    assert slot.value.shape == (1, 4)


def test_a_layer_of_your_own_only_needs_a_score_point():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = ScorePoint()

        def forward(self, x):
            return self.scores(x, valid=x > 0).softmax(-1)

    outputs, (slot,) = seen_by(
        Mine(), Scores(), torch.tensor([[1.0, -1.0]]), placed=lambda s: torch.tensor([[0.0, 2.0]])
    )
    torch.testing.assert_close(outputs, torch.tensor([[0.5, 0.5]]))
    assert slot.valid.tolist() == [[True, False]]


MULTIHEAD = {
    "plain": {},
    "time first": {"batch_first": False},
    "no bias": {"bias": False},
    "other key and value widths": {"kdim": 6, "vdim": 7},
    "bias_kv": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
}


@pytest.mark.parametrize("options", MULTIHEAD.values(), ids=list(MULTIHEAD))
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
def test_zero_push_changes_nothing_in_multihead(options, need_weights, masks):
    module = multihead(**options)
    query, key, value = words(), words(size=options.get("kdim", 8)), words(size=options.get("vdim", 8))
    if not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    given = {
        "need_weights": need_weights,
        "key_padding_mask": PADDING if masks in ("padding", "both") else None,
        "attn_mask": torch.ones(5, 5).bool().triu(1) if masks in ("causal", "both") else None,
    }
    plain, weights = module(query, key, value, **given)
    (watched, _), (slot,) = seen_by(module, Scores(), query, key, value, **given)
    assert torch.equal(watched, plain)
    (pushed, moved), _ = seen_by(
        module, Scores(), query, key, value, placed=lambda s: torch.zeros_like(s.value), **given
    )
    torch.testing.assert_close(pushed, plain, rtol=1e-12, atol=1e-12)
    if need_weights:
        torch.testing.assert_close(moved, weights, rtol=1e-12, atol=1e-12)
    assert slot.value.shape == (2, 2, 5, 5)
    hidden = torch.zeros(2, 1, 5, 5).bool()
    if masks in ("padding", "both"):
        hidden = hidden | PADDING[:, None, None, :]
    if masks in ("causal", "both"):
        hidden = hidden | torch.ones(5, 5).bool().triu(1)
    if masks != "none":
        assert torch.equal(slot.valid.expand(2, 1, 5, 5), ~hidden)


def test_a_large_push_moves_multihead_attention_as_predicted():
    module = multihead()
    x, push = words(), torch.randn(2, 2, 5, 5, dtype=torch.double) * 4
    (_, weights), (slot,) = seen_by(
        module, Scores(), x, x, x, key_padding_mask=PADDING, average_attn_weights=False, placed=lambda s: push
    )
    torch.testing.assert_close(weights, masked_softmax(slot.value + push, ~PADDING[:, None, None, :]))
    torch.testing.assert_close(slot.value, raw_scores(module, x, x))


def test_padded_words_ask_nothing_in_self_attention_but_do_in_cross_attention():
    module, x = multihead(), words()
    _, (slot,) = seen_by(module, Scores(), x, x, x, key_padding_mask=PADDING)
    assert torch.equal(slot.valid[:, 0], ~PADDING[:, None, :] & ~PADDING[:, :, None])
    _, (slot,) = seen_by(module, Scores(), words().flip(1), x, x, key_padding_mask=PADDING)
    assert slot.valid[:, 0].all(1).sum(-1).tolist() == [5, 3]


@pytest.mark.parametrize("least", [-torch.inf, -1e9, torch.finfo(torch.double).min])
@pytest.mark.parametrize("name", ["key_padding_mask", "attn_mask"])
def test_masks_of_large_negative_numbers_hide_as_infinite_ones_do(name, least):
    layer, x = multihead(), words()
    hidden = PADDING if name == "key_padding_mask" else PADDING[:, None, :].expand(2, 5, 5).repeat_interleave(2, 0)
    mask = torch.zeros(hidden.shape, dtype=torch.double).masked_fill(hidden, least)
    _, (slot,) = seen_by(layer, Scores(), x, x, x, **{name: mask})
    assert torch.equal(slot.valid.any(1).any(1), ~PADDING)


def test_only_the_chosen_heads_and_layers_are_perturbed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.double)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    everywhere = Scores()
    assert list(everywhere.modules(model)) == [f"layers.{k}.self_attn" for k in range(3)]
    assert list(Scores(layers=(-1,)).modules(model)) == ["layers.2.self_attn"]
    assert list(Scores(layers=(-3,)).modules(model)) == ["layers.0.self_attn"]
    for missing in (3, -4):
        with pytest.raises(ValueError, match=f"finds 3 attention layers, so there is no {missing}"):
            Scores(layers=(0, missing)).modules(model)
    assert list(Scores("layers.1").modules(model)) == ["layers.1.self_attn"]
    module, x = multihead(), words()
    (_, before), _ = seen_by(module, Scores(), x, x, x, average_attn_weights=False)
    (_, after), (slot,) = seen_by(
        module,
        Scores(heads=(-1,)),
        x,
        x,
        x,
        average_attn_weights=False,
        placed=lambda s: s.value.new_full(s.value.shape, 2.0).tril(),
    )
    assert slot.value.shape == (2, 1, 5, 5)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert (after[:, 1] - before[:, 1]).abs().max() > 0.1


def transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.double)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of the plain pass, in evaluation
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_torch_transformer_layers_are_reached_in_every_mode(mode, grad):
    model = transformer().train(mode == "train")
    x = words()
    with torch.set_grad_enabled(grad):
        plain = model(x, src_key_padding_mask=PADDING)
        same, slots = seen_by(model, Scores(), x, src_key_padding_mask=PADDING)
        moved, _ = seen_by(
            model,
            Scores(),
            x,
            src_key_padding_mask=PADDING,
            placed=lambda s: 3 * torch.eye(5, dtype=torch.double).expand_as(s.value),
        )
    torch.testing.assert_close(same[~PADDING], plain[~PADDING])
    assert len(slots) == 2
    assert (moved - plain)[0].abs().max() > 1e-3
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_padded_batch_equals_the_single_sentences_in_a_transformer():
    model, x = transformer(), words()
    push = torch.randn(2, 2, 5, 5, dtype=torch.double)
    together, _ = seen_by(model, Scores(layers=(0,)), x, src_key_padding_mask=PADDING, placed=lambda s: push)
    alone, _ = seen_by(model, Scores(layers=(0,)), x[1:, :3], placed=lambda s: push[1:, :, :3, :3])
    torch.testing.assert_close(together[1, :3], alone[0])


def test_decoder_layers_show_self_and_cross_attention():
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dtype=torch.double)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.double)
    _, slots = seen_by(model, Scores(), words(), words(length=7), tgt_mask=mask, tgt_is_causal=True)
    assert [slot.value.shape[-1] for slot in slots] == [5, 7]
    assert torch.equal(slots[0].valid[0, 0], torch.ones(5, 5).bool().tril())


def test_gradients_in_the_perturbation_of_first_and_second_order():
    model, x = transformer().eval(), words(1, 3)
    push = torch.zeros(1, 2, 3, 3, dtype=torch.double, requires_grad=True)

    def run(push):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return seen_by(model, Scores(layers=(0,)), x, placed=lambda s: push)[0]

    assert torch.autograd.gradcheck(run, push)
    assert torch.autograd.gradgradcheck(run, push)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: Scores("atention").modules(SingleSequence(9, 4, 6)), "near names: attention"),
        (lambda: Scores("embedding").modules(SingleSequence(9, 4, 6)), "matches no attention layer"),
        (lambda: Scores(layers=(2,)).modules(SingleSequence(9, 4, 6)), "finds 1 attention layers, so there is no 2"),
        (lambda: seen_by(AdditiveAttention(6), Scores(heads=(0,)), torch.zeros(1, 2, 6)), "has one head"),
        (lambda: seen_by(multihead(), Scores(heads=(2,)), *[words()] * 3), "has 2 heads, so there is no 2"),
        (lambda: seen_by(multihead(), Scores(), *[words()[0]] * 3), "must see a batch"),
    ],
)
def test_errors_name_the_fix(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def test_nothing_stays_behind_even_when_the_pass_fails():
    module = multihead()
    with pytest.raises(ValueError, match="does not fit"):
        seen_by(module, Scores(), *[words()] * 3, placed=lambda s: torch.zeros(7))
    assert "forward" not in module.__dict__
    layer = AdditiveAttention(6)
    with pytest.raises(ValueError, match="does not fit"):
        seen_by(layer, Scores(), torch.zeros(1, 2, 6), placed=lambda s: torch.zeros(7))
    assert not layer.scores._forward_hooks


def test_a_word_that_only_sees_itself_is_padding_unless_it_is_alone():
    hidden = torch.full((2, 1, 2, 2), -1e30)
    hidden[0] = 0.0  # two words that see each other
    hidden[1, 0, 0, 0] = hidden[1, 0, 1, 1] = hidden[1, 0, 1, 0] = 0.0  # the second word sees both, nobody else sees it
    seen = seen_by_others(hidden)
    assert seen[0].all()
    assert seen[1, 0].tolist() == [[True, False], [False, False]]
    assert seen_by_others(torch.zeros(2, 1, 1, 1)).all(), "a sentence of one word"


def test_only_a_module_with_a_choice_of_kernel_is_hugging_faces(monkeypatch):
    class Mentions(nn.Module):
        def forward(self, x):
            return ALL_ATTENTION_FUNCTIONS[self.kind](x)  # noqa: F821

    monkeypatch.setitem(sys.modules, "transformers", sys.modules.get("transformers", object()))
    assert not is_hugging_face_attention(Mentions())
