"""Encoder-decoders from a folder: what is checked before training, where sentences end, how long the search may be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.lab.data.pieces import Pieces
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.runs.folder import folder_of
from sparring.lab.runs.run import prepare
from sparring.lab.tasks.translation.pairs import IGNORED, generated
from sparring.lab.tasks.translation.pretrained import translate
from sparring.lab.training.train import Session

transformers = pytest.importorskip("transformers")
START, END = 1, 2
SIDES = {f"{side}_{name}": number for side in ("encoder", "decoder") for name, number in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip


def saved(path: Path, ends: bool = True, **changes: Any) -> Path:
    """A tiny BART with a tokenizer that writes the end of a sentence, or does not."""
    from tokenizers.processors import TemplateProcessing

    path.mkdir(exist_ok=True)
    texts = generated(100, seed=0)
    table = Pieces.learn([*texts.first, *texts.second], 120).table
    if ends:
        table.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=table, **names).save_pretrained(path)
    shape = {"vocab_size": 120, "d_model": 16, "max_position_embeddings": 90, "forced_eos_token_id": None, **SIDES}
    marks = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    torch.manual_seed(0)
    config = transformers.BartConfig(**{**shape, **marks, **changes})
    transformers.BartForConditionalGeneration(config).save_pretrained(path)
    return path


def made(folder: Path | str, **changes: Any) -> Session:
    return prepare(task("multi30k").setting("plain", overrides={"examples": 20, "encoder": str(folder), **changes}))


def edit(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def damaged(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    return folder


@pytest.mark.parametrize("ends", [True, False])
def test_every_target_ends_once_and_no_word_is_lost(ends: bool, tmp_path: Path) -> None:
    train = made(saved(tmp_path / "bart", ends)).data.train
    table = train.pieces.table
    for row, text in enumerate(train.references):
        words = table(text, add_special_tokens=False)["input_ids"]
        wanted = [number for number in train.targets[row].tolist() if number != IGNORED]
        there = int(train.inputs["decoder_attention_mask"][row].sum())
        assert wanted == [*words, END]
        assert train.inputs["decoder_input_ids"][row, :there].tolist() == [START, *words]


@pytest.mark.parametrize("beam", [1, 3])
def test_the_limit_of_a_search_does_not_depend_on_the_batch(beam: int, tmp_path: Path) -> None:
    session = made(saved(tmp_path / "bart"))
    model, train = session.model.eval(), session.data.train
    model.final_logits_bias[0, END] = -1e9  # it never stops by itself
    sizes = train.inputs["attention_mask"].sum(1)
    order = sizes.argsort()[[0, len(sizes) // 2, -1]]
    assert sizes[order[0]] < sizes[order[-1]]
    with torch.no_grad():
        together = translate(model, train.batch(order)[0], beam, 1.0)
        for row, index in enumerate(order):
            (alone,) = translate(model, train.batch(index[None])[0], beam, 1.0)
            assert len(alone) == 1 + 2 * int(sizes[index]) + 10
            assert together[row] == alone


def test_a_search_stays_within_the_positions(tmp_path: Path) -> None:
    session = made(saved(tmp_path / "bart", max_position_embeddings=30))
    session.model.eval().final_logits_bias[0, END] = -1e9
    inputs, _ = session.data.train.batch(slice(0, 8))
    with torch.no_grad():
        found = translate(session.model, inputs, 2, 1.0)
    sizes = inputs["attention_mask"].sum(1).tolist()
    assert max(sizes) > 10
    assert [len(row) for row in found] == [1 + min(2 * size + 10, 30) for size in sizes]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: edit(saved(p), d_model=32), r"its weights do not fit its config.json, \d+ parameters such as model\."),
        (lambda p: edit(saved(p), decoder_layers=3), r"do not fit its config.json, 52 parameters such as model.decoder.layers"),
        (lambda p: edit(saved(p), decoder_start_token_id=None), "how a translation starts; set decoder_start_token_id"),
        (lambda p: edit(saved(p), eos_token_id=None), "how a translation ends; set eos_token_id"),
        (lambda p: damaged(saved(p)), "no model can be loaded from it"),
        (lambda p: saved(p, vocab_size=50), "its tokenizer numbers pieces up to 119, its model has 50"),
        (lambda p: p / "none", "there is no such folder"),
    ],
)  # fmt: skip
def test_bad_folders_are_one_sentence(make: Callable[[Path], Path], sentence: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "bart")
    with pytest.raises(LabError, match=sentence) as caught:
        made(folder)
    assert str(caught.value).startswith(f"encoder={folder}")


def test_sentences_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "bart", max_position_embeddings=12)
    with pytest.raises(
        LabError, match=r"length=60 keeps a sentence of \d+ pieces, but .* has 12 positions; use length=12"
    ):
        made(folder)


def test_other_contents_of_a_folder_are_another_run(tmp_path: Path) -> None:
    places = set()
    for changes in ({}, {"vocab_size": 130}, {"dropout": 0.3}):
        folder = saved(tmp_path / "bart", **changes)
        places.add(folder_of(tmp_path, task("multi30k").setting("plain", overrides={"encoder": str(folder)})))
    assert len(places) == 3
