"""Pretrained encoder-decoders in the translation tasks."""

from pathlib import Path

import pytest
import torch

from sparring.lab.data.pieces import Pieces
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.runs.run import execute, prepare
from sparring.lab.tasks.translation.pairs import generated
from sparring.lab.tasks.translation.scores import loss_per_piece, translations

transformers = pytest.importorskip("transformers")
SHORT = {"epochs": 1, "examples": 40}


@pytest.fixture(scope="module", params=["bart", "t5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder-decoder with a tokenizer, as transformers saves them: BART starts with </s>, T5 with padding."""
    from tokenizers.processors import TemplateProcessing

    path = tmp_path_factory.mktemp(request.param)
    texts = generated(100, seed=0)
    table = Pieces.learn([*texts.first, *texts.second], 120).table
    table.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=table, **names).save_pretrained(path)
    size = {"vocab_size": 120, "d_model": 16, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    if request.param == "t5":
        config = transformers.T5Config(**size, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
        transformers.T5ForConditionalGeneration(config).save_pretrained(path)
    else:
        heads = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
        more = {
            "bos_token_id": 1,
            "forced_eos_token_id": None,
            "decoder_start_token_id": 2,
            "max_position_embeddings": 90,
        }
        transformers.BartForConditionalGeneration(transformers.BartConfig(**size | more | heads)).save_pretrained(path)
    return path


@pytest.mark.parametrize("method", ["plain", "salt", "smart"])
def test_a_pretrained_model_is_trained_at_both_sides(folder: Path, method: str, tmp_path: Path, steps: list) -> None:
    changes = {**SHORT, "encoder": str(folder), "lr": 1e-3}
    session = prepare(task("multi30k").setting(method, overrides=changes))
    inputs, targets = session.data.train.batch(torch.arange(6))
    ours = session.objective(inputs, targets).detach()
    assert bool(ours.isfinite())
    if method == "salt":
        slots = next(iter(steps[0].last.slots.values()))
        assert [slot.placed.shape[1] for slot in slots] == [
            inputs[f"{side}input_ids"].shape[1] for side in ("", "decoder_")
        ]
        for slot, side in zip(slots, ("", "decoder_"), strict=True):
            padding = inputs[f"{side}attention_mask"] == 0
            assert bool((slot.placed[padding] == 0).all())
            norms = slot.placed.flatten(1).norm(dim=1)
            assert torch.allclose(norms, torch.full_like(norms, 0.3), atol=1e-3)
    result = execute(task("multi30k").setting(method, overrides=changes), tmp_path)
    assert result["test"]["bleu"] >= 0


def test_its_loss_is_the_models_own(folder: Path) -> None:
    session = prepare(task("multi30k").setting("plain", overrides={**SHORT, "encoder": str(folder)}))
    session.model.eval()
    one = session.data.validation.first(1)
    inputs, targets = one.batch(slice(0, 1))
    with torch.no_grad():
        own = session.model(input_ids=inputs["input_ids"], labels=targets).loss
        assert loss_per_piece(session.model, one) == pytest.approx(float(own), rel=1e-5)
        assert len(translations(session.model, session.data.validation.first(5), 2, 1.0)) == 5


def test_an_encoder_alone_is_refused(tmp_path: Path) -> None:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.BertConfig(vocab_size=9, **shape).save_pretrained(tmp_path)
    table = Pieces.learn(["a b c"], 20).table
    transformers.PreTrainedTokenizerFast(tokenizer_object=table, pad_token="<pad>").save_pretrained(tmp_path)
    with pytest.raises(LabError, match="is no encoder-decoder; translation needs one"):
        prepare(task("multi30k").setting("plain", overrides={**SHORT, "encoder": str(tmp_path)}))
