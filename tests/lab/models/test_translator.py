"""The translator against torch's own transformer layers; its search against brute force and against no cache."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from sparring.lab.models.transformer import Translator, translate
from sparring.lab.models.transformer.model import END, PAD, START


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def toy(vocabulary: int = 6, seed: int = 1, **more: object) -> Translator:
    torch.manual_seed(seed)
    model = Translator(vocabulary, width=16, heads=2, layers=2, dropout=0.0, **more).eval()
    for parameter in model.parameters():  # a random model of small weights says nearly the same everywhere
        parameter.data *= 2.5
    return model


def score(model: Translator, source: Tensor, words: tuple[int, ...], penalty: float) -> float:
    """Log-probability of a whole sentence by one pass, over its length."""
    target = torch.tensor([[START, *words]])
    logs = model(source=source, target=target)[0].log_softmax(-1)
    return sum(float(logs[i, w]) for i, w in enumerate([*words, END])) / (len(words) + 1) ** penalty


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_wide_beam_finds_the_best_sentence_there_is(penalty: float, pre_norm: bool) -> None:
    model, longest = toy(pre_norm=pre_norm), 4
    sources = torch.tensor([[3, 4, 5, END], [5, 3, END, PAD]])
    sentences = [w for n in range(longest + 1) for w in itertools.product(range(3, 6), repeat=n)]
    found = translate(model, sources, beam=3**longest, length_penalty=penalty, longest=longest)
    for row, words in zip(sources, found, strict=True):
        source = row[row != PAD][None]
        scores = {sentence: score(model, source, sentence, penalty) for sentence in sentences}
        assert scores[tuple(words)] == pytest.approx(max(scores.values()), abs=1e-5)


def slow_greedy(model: Translator, source: Tensor, longest: int) -> list[int]:
    words: list[int] = []
    while len(words) < longest:
        logits = model(source=source, target=torch.tensor([[START, *words]]))[0, -1]
        logits[[PAD, START]] = -math.inf
        if int(logits.argmax()) == END:
            break
        words.append(int(logits.argmax()))
    return words


@pytest.mark.parametrize("share", [True, False])
def test_a_beam_of_one_is_greedy_search_without_cache(share: bool) -> None:
    model = toy(12, share=share)
    sources = torch.tensor([[3, 4, 5, 6, END], [7, 8, END, PAD, PAD], [11, 10, 9, END, PAD]])
    found = translate(model, sources, longest=9)
    assert found == [slow_greedy(model, row[row != PAD][None], 9) for row in sources]
    assert not share or len({len(words) for words in found}) > 1, "the toy must end at different lengths"


def slow_beam(model: Translator, source: Tensor, beam: int, penalty: float, longest: int) -> list[int]:
    """Beam search by the book: every hypothesis read from its first word in every step."""
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 2):
        found = []
        for total, words in going:
            logs = model(source=source, target=torch.tensor([[START, *words]]))[0, -1].log_softmax(-1).tolist()
            allowed = [END] if length > longest else [w for w in range(len(logs)) if w not in (PAD, START)]
            found += [(total + logs[w], [*words, w]) for w in allowed]
        found.sort(reverse=True)
        done += [(total / length**penalty, words[:-1]) for total, words in found[:beam] if words[-1] == END]
        going = [one for one in found[: 2 * beam] if one[1][-1] != END][:beam]
        if len(done) >= beam or not going:
            break
    return max(done)[1]


@pytest.mark.parametrize("seed", range(6))
def test_kept_keys_and_values_change_nothing(seed: int) -> None:
    model = toy(10, seed)
    sources = torch.tensor([[3, 4, 5, 6, END], [7, 8, END, PAD, PAD], [9, 3, 9, END, PAD]])
    found = translate(model, sources, beam=3, length_penalty=0.7, longest=7)
    assert found == [slow_beam(model, row[row != PAD][None], 3, 0.7, 7) for row in sources]


def test_a_wider_beam_never_scores_worse_here_and_padding_changes_nothing() -> None:
    model = toy(12)
    sources = torch.tensor([[3, 4, 5, 6, END], [7, 8, END, PAD, PAD]])
    alone = [translate(model, row[row != PAD][None], beam=4, longest=8)[0] for row in sources]
    assert translate(model, sources, beam=4, longest=8) == alone
    one, four = (translate(model, sources[:1], beam=k, longest=8)[0] for k in (1, 4))
    assert score(model, sources[:1], tuple(four), 1.0) >= score(model, sources[:1], tuple(one), 1.0)


def test_the_longest_sentence_is_as_long_as_asked_for() -> None:
    model, source = toy(12), torch.tensor([[3, 4, 5, 6, END]])
    for longest in (0, 1, 3):
        assert len(translate(model, source, beam=2, longest=longest)[0]) <= longest


def test_no_sentences_have_no_translations() -> None:
    for beam, longest in ((1, None), (3, 5)):
        assert translate(toy(), torch.zeros(0, 4, dtype=torch.long), beam=beam, longest=longest) == []


def test_what_is_written_does_not_depend_on_what_follows_or_on_padding() -> None:
    model = toy(12)
    source, target = torch.tensor([[3, 4, END]]), torch.tensor([[START, 5, 6, 7]])
    whole = model(source=source, target=target)
    assert torch.allclose(model(source=source, target=target[:, :2]), whole[:, :2], atol=1e-5)
    padded = model(source=torch.tensor([[3, 4, END, PAD, PAD]]), target=target)
    assert torch.allclose(padded, whole, atol=1e-5)
    cache = model.begin(source)
    pieces = [model.write(target[:, i : i + 1], cache) for i in range(4)]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-4)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_layers_equal_torchs(pre_norm: bool) -> None:
    model = toy(9, pre_norm=pre_norm)
    shape = {
        "d_model": 16,
        "nhead": 2,
        "dim_feedforward": 64,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": pre_norm,
    }
    x, memory = torch.randn(2, 4, 16), torch.randn(2, 3, 16)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    ours, theirs = model.decoder[0], nn.TransformerDecoderLayer(**shape).eval()
    for mine, other in ((ours.own, theirs.self_attn), (ours.source, theirs.multihead_attn)):
        parts = (mine.query, mine.key, mine.value)
        other.in_proj_weight.data = torch.cat([part.weight for part in parts])
        other.in_proj_bias.data = torch.cat([part.bias for part in parts])
        other.out_proj.load_state_dict(mine.out.state_dict())
    theirs.linear1.load_state_dict(ours.feed[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed[2].state_dict())
    for norm, mine in ((theirs.norm1, ours.first), (theirs.norm2, ours.second), (theirs.norm3, ours.third)):
        norm.load_state_dict(mine.norm.state_dict())
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = theirs(x, memory, tgt_mask=~causal, memory_key_padding_mask=~mask)
    found, _ = ours(x, None, ours.source.remember(memory), causal, mask[:, None, None])
    assert torch.allclose(found, expected, atol=1e-4)


def test_bad_input_is_named() -> None:
    model = toy()
    with pytest.raises(ValueError, match="beam=0"):
        translate(model, torch.tensor([[3, END]]), beam=0)
    with pytest.raises(ValueError, match=r"model\.eval"):
        translate(model.train(), torch.tensor([[3, END]]))
