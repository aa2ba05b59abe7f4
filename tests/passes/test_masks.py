"""Losses over tokens are those of the user's framework: ours against Hugging Face's own, to 1e-6."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparring as sp
from sparring.passes.masks import Masks, ignored_label

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0], [3, 4, 2, 7, 0]])
MASK = (IDS != 0).long()


def shifted(outputs: object) -> Tensor:
    return outputs.logits[:, :-1]  # type: ignore[attr-defined]


def causal() -> tuple:
    config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0)
    labels = IDS.masked_fill(MASK == 0, -100)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    valid = {"outputs": MASK[:, 1:]}
    return transformers.GPT2LMHeadModel(config), inputs, labels, labels[:, 1:], shifted, valid


def masked() -> tuple:
    labels = torch.full_like(IDS, -100)
    labels[0, 1], labels[0, 3], labels[2, 2] = 6, 8, 2  # the second sentence has no label at all
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)), inputs, labels, labels, None, None


def tagged() -> tuple:
    labels = (IDS % 3).masked_fill(MASK == 0, -100)
    labels[0, 2] = -100  # an inner piece of a word
    model = transformers.BertForTokenClassification(transformers.BertConfig(**SMALL, num_labels=3))
    return model, {"input_ids": IDS, "attention_mask": MASK}, labels, labels, None, None


def translated() -> tuple:
    config = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    labels = torch.tensor([[4, 5, -100, -100, -100], [7, 8, 9, 4, 1], [6, 6, 1, -100, -100]])  # as long as the source
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    model = transformers.T5ForConditionalGeneration(config)
    inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    return model, inputs, labels, labels, None, None


FAMILIES = {"causal": causal, "masked": masked, "tagged": tagged, "translated": translated}


def part(tree: object, rows: slice) -> object:
    if isinstance(tree, Tensor):
        return tree[rows]
    return None if tree is None else {key: part(value, rows) for key, value in tree.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_counted_as_hugging_face_counts_them(family: str) -> None:
    model, inputs, labels, targets, outputs, valid = FAMILIES[family]()
    model.double().eval()
    objective = sp.Objective(model, sp.cross_entropy, outputs=outputs, reduction="tokens")
    own = model(**inputs, labels=labels).loss.double()
    torch.testing.assert_close(objective(inputs, targets, valid), own, rtol=0, atol=1e-6)
    halves = [slice(0, 1), slice(1, 3)]  # two uneven batches that are accumulated
    items = (targets != -100).sum()
    total = sum(objective(part(inputs, rows), targets[rows], part(valid, rows), items=items) for rows in halves)
    torch.testing.assert_close(total, own, rtol=0, atol=1e-6)
    plain = objective(part(inputs, halves[0]), targets[:1], part(valid, halves[0]))
    assert abs(float(plain.detach() - own.detach())) > 1e-3, "the batches are too alike to tell"


def test_examples_without_any_label_do_not_count_as_zeros() -> None:
    model, inputs, _, targets, _, _ = masked()
    model.double().eval()
    objective = sp.Objective(model, sp.cross_entropy)
    rows = [objective(part(inputs, slice(k, k + 1)), targets[k : k + 1]) for k in (0, 2)]
    torch.testing.assert_close(objective(inputs, targets), (rows[0] + rows[1]) / 2)


LOSSES = {
    "ours": sp.cross_entropy,
    "ours, another label": partial(sp.cross_entropy, ignore_index=1),
    "a function of torch": partial(F.cross_entropy, reduction="none"),
    "a module of torch": nn.CrossEntropyLoss(reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_example_whose_one_label_is_ignored_counts_as_if_it_were_not_there(name: str) -> None:
    """The loss, its gradients, the penalty and the count are those of the batch without it; the plain loss is torch's own mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, loss = torch.randn(5, 4, dtype=torch.double), LOSSES[name]
    ignored = ignored_label(loss)
    y = torch.tensor([0, ignored, 2, ignored, 2])
    plain = sp.Objective(model, loss)(x, y)
    torch.testing.assert_close(plain, F.cross_entropy(model(x), y, ignore_index=ignored))
    penalty = sp.Term(sp.Input(), sp.FastGradient(sp.L2(0.5)), sp.kl, payoff="loss")
    found = []
    for keep in (torch.ones(5, dtype=torch.bool), y != ignored):
        objective = sp.Objective(model, loss, penalty, sp.Term(sp.Input(), sp.FastGradient(sp.L2(0.5))))
        value = objective(x[keep], y[keep])
        gradients = torch.autograd.grad(value, list(model.parameters()))
        said = {key: v for key, v in objective.diagnostics.items() if key.endswith(("loss", "penalty"))}
        found.append((value, gradients, said, int(objective.counted)))
    torch.testing.assert_close(*found)


def test_numbers_that_a_loss_does_not_ignore_count() -> None:
    """A loss that knows no label to ignore takes -100 for a number like any other."""
    model, x, y = nn.Linear(2, 1), torch.randn(3, 2), torch.tensor([-100, 3, 4])
    loss = sp.Objective(model, sp.squared_loss)(x, y)
    torch.testing.assert_close(loss, (model(x)[:, 0] - y).square().mean())


def test_source_and_target_masks_are_kept_apart() -> None:
    model, inputs, _, targets, _, _ = translated()
    model.double().eval()
    inputs["decoder_attention_mask"] = (targets != -100).long()
    seen = {}
    sites = {
        "encoder": sp.Output("encoder.block.0"),
        "decoder": sp.Output("decoder.block.0"),
        "head": sp.Output("lm_head"),
    }
    for side, site in sites.items():
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(site, sp.PGD(sp.L2(1.0), start=0.1), sp.kl))
        step = objective.begin(inputs, targets, None, objective.terms)
        step.begin()
        seen[side] = step.slots(site)[0].valid.squeeze(-1)
    assert torch.equal(seen["encoder"], MASK.bool())
    assert torch.equal(seen["decoder"], targets != -100)
    assert torch.equal(seen["head"], targets != -100), "what follows the decoder belongs to the target as well"


def test_penalties_leave_out_padding_and_ignored_labels() -> None:
    model, inputs, _, targets, _, _ = tagged()
    model.double().eval()
    objective = sp.Objective(
        model, sp.cross_entropy, sp.Term(sp.Output("bert.embeddings"), sp.Noise(sp.L2(1.0)), sp.kl)
    )
    step = objective.begin(inputs, targets, None, objective.terms)
    step.begin()
    other = step.outputs + torch.randn_like(step.outputs)
    logs, counts = step.outputs.log_softmax(-1), targets != -100
    tokens = (logs.exp() * (logs - other.log_softmax(-1))).sum(-1)
    expected = torch.stack([tokens[k][counts[k]].mean() for k in range(3)])
    torch.testing.assert_close(step.penalty(sp.kl, step.outputs, other), expected)


def test_cut_outputs_need_their_own_mask() -> None:
    model, inputs, _, targets, outputs, _ = causal()
    objective = sp.Objective(model, sp.cross_entropy, outputs=outputs)
    with pytest.raises(ValueError, match=r'valid=\{"outputs": mask\}'):
        objective(inputs, targets)


def test_one_mask_is_refused_where_there_are_two_sides() -> None:
    model, inputs, _, targets, _, _ = translated()
    with pytest.raises(ValueError, match=r'"source": [.]{3}, "target"'):
        sp.Objective(model, sp.cross_entropy)(inputs, targets, MASK)


def test_a_mask_by_name_counts_before_the_one_that_was_found() -> None:
    masks = Masks.of({"a.*": MASK, "outputs": None}, {"attention_mask": MASK}, None, False, -100)
    value = torch.zeros(3, 5, 4)
    assert torch.equal(masks.at_slot("a.b", value, None, "source").squeeze(-1), MASK.bool())
    assert masks.at_slot("c", value, None, "source") is None
    assert masks.at_outputs(value) is None
    with pytest.raises(ValueError, match=r"does not fit a\.b"):
        masks.at_slot("a.b", value[:, :4], None, "source")
