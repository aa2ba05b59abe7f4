import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sparring.lab.models.birnn import Encoder, PairSequence, SingleSequence
from sparring.penalties import kl, symmetric_kl

KINDS = ("lstm", "gru", "cnn")


def single(kind="lstm", attention="additive"):
    torch.manual_seed(0)
    return SingleSequence(12, 5, 8, encoder=kind, attention=attention).double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["additive", "dot"])
def test_a_padded_batch_equals_the_single_sentences(kind, attention):
    model = single(kind, attention)
    tokens = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0], [1, 0, 0, 0, 0]])
    together = model(tokens)
    for row, length in enumerate((5, 3, 1)):
        torch.testing.assert_close(together[row], model(tokens[row : row + 1, :length])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_pair_equals_the_single_pair(kind):
    torch.manual_seed(0)
    model = PairSequence(12, 5, 8, 4, encoder=kind).double()
    paragraph, question = torch.tensor([[3, 4, 5, 6], [8, 9, 0, 0]]), torch.tensor([[2, 3, 4], [5, 0, 0]])
    together = model(paragraph, question)
    torch.testing.assert_close(together[1], model(paragraph[1:, :2], question[1:, :1])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_row_is_the_bias_of_the_head_and_gives_finite_gradients(kind):
    model = single(kind)
    logits = model(torch.tensor([[0, 0, 0], [3, 4, 0]]))
    torch.testing.assert_close(logits[0], model.head.bias)
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_recurrent_encoder_equals_torchs_bidirectional_layer_on_packed_sequences(kind):
    torch.manual_seed(0)
    encoder = Encoder(3, 8, kind).double()
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](3, 4, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            source = encoder.back if name.endswith("_reverse") else encoder.ahead
            parameter.copy_(getattr(source, name.removesuffix("_reverse")))
    lengths = torch.tensor([5, 2, 1])
    vectors = torch.randn(3, 5, 3, dtype=torch.double)
    states, summary = encoder(vectors, torch.arange(5) < lengths[:, None])
    output, last = theirs(pack_padded_sequence(vectors, lengths, batch_first=True))
    last = last[0] if kind == "lstm" else last
    torch.testing.assert_close(states, pad_packed_sequence(output, batch_first=True)[0])
    torch.testing.assert_close(summary, torch.cat([last[0], last[1]], -1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_reads_in_both_directions(kind):
    torch.manual_seed(0)
    encoder = Encoder(3, 8, kind).double()
    vectors = torch.randn(1, 5, 3, dtype=torch.double, requires_grad=True)
    states, _ = encoder(vectors, torch.ones(1, 5).bool())
    (gradient,) = torch.autograd.grad(states[0, 2].sum(), vectors)
    assert (gradient[0, [0, 1, 3, 4]].abs().sum(-1) > 0).all()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_states(layer, vectors):
    """Hidden states of an LSTM, step by step in numpy (torch's order of gates: input, forget, cell, output)."""
    w_x, w_h, b_x, b_h = (p.detach().numpy() for p in layer.parameters())
    h = c = np.zeros(w_h.shape[1])
    states = []
    for x in vectors:
        i, f, g, o = np.split(w_x @ x + b_x + w_h @ h + b_h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states)


def test_the_pair_model_is_equations_6_to_8_and_its_head_written_out():
    """The oracle: nothing of the model but its weights. It also shows that attention and head both hear the question."""
    torch.manual_seed(0)
    model = PairSequence(12, 5, 6, 4).double()
    nn.init.normal_(model.attention.compare.weight)
    nn.init.normal_(model.attention.project_query.weight)
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def encoded(encoder, tokens):
        vectors = weights["embedding.weight"][tokens]
        ahead = lstm_states(encoder.ahead, vectors)
        back = lstm_states(encoder.back, vectors[::-1])[::-1]
        return np.concatenate([ahead, back], 1), np.concatenate([ahead[-1], back[0]])

    def answer(paragraph, question, heard_by_attention, heard_by_head):
        states, _ = encoded(model.paragraph_encoder, paragraph)
        query = encoded(model.question_encoder, question)[1]
        asked, told = query * heard_by_attention, query * heard_by_head
        hidden = states @ weights["attention.project.weight"].T + weights["attention.project.bias"]
        scores = (
            np.tanh(hidden + weights["attention.project_query.weight"] @ asked) @ weights["attention.compare.weight"][0]
        )
        share = np.exp(scores - scores.max())
        pooled = share / share.sum() @ states
        merged = weights["from_paragraph.weight"] @ pooled + weights["from_paragraph.bias"]
        merged = np.tanh(merged + weights["from_question.weight"] @ told)
        return weights["head.weight"] @ merged + weights["head.bias"]

    paragraph, question = [3, 4, 5, 6, 2], [7, 8, 9]
    ours = model(torch.tensor([paragraph]), torch.tensor([question]))[0].detach().numpy()
    np.testing.assert_allclose(ours, answer(paragraph, question, True, True), rtol=1e-10)
    for deaf in ((False, True), (True, False)):
        assert np.abs(ours - answer(paragraph, question, *deaf)).max() > 1e-4


def test_entities_rule_out_answers_without_breaking_divergences():
    torch.manual_seed(0)
    model = PairSequence(12, 5, 8, 4)
    paragraph, question = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[2, 3]])
    entities = torch.tensor([[False, True, True, False]])
    logits = model(paragraph, question, entities)
    assert logits.softmax(-1)[0, [0, 3]].tolist() == [0.0, 0.0]
    open_logits = model(paragraph, question)
    torch.testing.assert_close(logits[0, 1:3].softmax(-1), open_logits[0, 1:3].softmax(-1))
    other = model(paragraph.flip(1), question, entities)
    for divergence in (kl, symmetric_kl):
        assert torch.isfinite(divergence(logits, other)).all()


def test_given_vectors_are_used_and_padding_stays_zero():
    vectors = torch.arange(24.0).view(6, 4)
    model = SingleSequence(6, 4, 8, vectors=vectors)
    assert model.embedding.weight[3].tolist() == vectors[3].tolist()
    assert model.embedding.weight[0].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Encoder(3, 8, "mlp"), "kind='mlp'"),
        (lambda: Encoder(3, 7), "a multiple of 2"),
        (lambda: SingleSequence(6, 4, 8, attention="cosine"), "'additive' or 'dot'"),
        (lambda: SingleSequence(6, 4, 8, vectors=torch.zeros(3, 4)), r"\(3, 4\)"),
    ],
)
def test_errors_name_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_pair_model_listens_to_its_question() -> None:
    """Both ways in which a question acts, the query of the attention and the head, matter on their own."""
    torch.manual_seed(0)
    model = PairSequence(words=20, size=6, features=8, classes=4).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    paragraph = torch.tensor([[3, 7, 2, 9]])
    questions = [torch.tensor([[8, 2]]), torch.tensor([[5, 11]])]
    for silenced in (None, model.from_question, model.from_paragraph):
        saved = None if silenced is None else silenced.weight.detach().clone()
        if silenced is not None:
            with torch.no_grad():
                silenced.weight.zero_()
        one, other = (model(paragraph, question) for question in questions)
        assert (one - other).abs().max() > 1e-3
        if silenced is not None:
            with torch.no_grad():
                silenced.weight.copy_(saved)
