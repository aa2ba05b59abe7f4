"""Translation tasks: two places with two balls, BLEU with its signature, batches by tokens, averaged weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from torch.nn import functional as F

import sparring as sp
from sparring.lab.data import DataError
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.runs.checkpoint import load
from sparring.lab.runs.folder import folder_of
from sparring.lab.runs.run import execute, prepare
from sparring.lab.tasks.translation.pairs import IGNORED, generated
from sparring.lab.tasks.translation.scores import evaluate, loss_per_piece, metric, translations
from sparring.lab.training.train import train

SHORT = {"epochs": 1, "examples": 60}


def test_source_and_target_are_two_places_with_a_ball_each(steps: list) -> None:
    session = prepare(task("multi30k").setting("salt", overrides={**SHORT, "radius": 0.7}))
    inputs, targets = session.data.train.batch(torch.arange(6))
    session.objective(inputs, targets).backward()
    (step,) = steps
    slots = {slot.name: slot for slot in step.last.slots[sp.Output("*_words")]}
    assert set(slots) == {"source_words", "target_words"}
    for side, slot in slots.items():
        words = inputs[side.removesuffix("_words")] != 0
        norms = slot.placed.flatten(1).norm(dim=1)
        assert torch.allclose(norms, torch.full_like(norms, 0.7), atol=1e-3)
        assert bool((slot.placed[~words] == 0).all())


def test_the_plain_loss_is_torchs_smoothed_cross_entropy() -> None:
    session = prepare(task("multi30k").setting("plain", overrides={**SHORT, "label_smoothing": 0.2, "dropout": 0}))
    inputs, targets = session.data.train.batch(torch.arange(6))
    logits = session.model(**inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=0.2)
    found = session.objective(inputs, targets).detach()
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-5)


def test_bleu_is_sacrebleus_and_signed(tmp_path: Path) -> None:
    setting = task("multi30k").setting("plain", overrides=SHORT)
    session = prepare(setting)
    session.model.eval()
    test = session.data.test
    said = translations(session.model, test, 2, 1.0)
    with torch.no_grad():
        found = evaluate(session.model, test, setting)
        one = [
            float(F.cross_entropy(session.model(**x).flatten(0, 1), y.flatten())) for x, y in test.first(1).batches(1)
        ]
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, [list(test.references)], force=True).score)
    with torch.no_grad():
        assert loss_per_piece(session.model, test.first(1)) == pytest.approx(one[0], rel=1e-5)
    execute(setting, tmp_path)
    (figure,) = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in figure["note"]
    ready = metric(task("iwslt14-de-en").setting("plain"))
    ready.corpus_score(["a b"], [["a b"]])
    assert "tok:none" in str(ready.get_signature())


def test_translations_come_back_in_the_order_of_their_sources() -> None:
    session = prepare(task("multi30k").setting("plain", overrides=SHORT))
    session.model.eval()
    validation = session.data.validation
    together = translations(session.model, validation, 1, 1.0)
    assert together[:5] == [
        translations(session.model, validation.first(place + 1), 1, 1.0, size=1)[place] for place in range(5)
    ]


def test_the_toy_language_is_learned(tmp_path: Path) -> None:
    result = execute(task("multi30k").setting("plain", overrides={"epochs": 12, "dropout": 0}), tmp_path)
    assert result["test"]["bleu"] > 10


def test_the_control_of_two_dropout_masks_has_dropout() -> None:
    session = prepare(task("multi30k").setting("r_drop", overrides=SHORT))
    batch = session.data.train.batch(torch.arange(6))
    session.objective(*batch)
    assert session.objective.diagnostics["r_drop/penalty"] > 1e-4
    session = prepare(task("multi30k").setting("r_drop", overrides={**SHORT, "dropout": 0}))
    session.objective(*batch)
    with pytest.warns(UserWarning, match="r_drop: both passes gave the same outputs"):
        session.objective(*batch)  # step 1, the first one that is looked at


def test_the_score_is_of_the_mean_over_the_last_epochs() -> None:
    changes = {**SHORT, "epochs": 3, "average_epochs": 2}
    session = prepare(task("multi30k").setting("plain", overrides=changes))
    ends: list[dict[str, torch.Tensor]] = []
    close = session.update.average.close_epoch

    def spy() -> None:
        ends.append({name: value.clone() for name, value in session.model.state_dict().items()})
        close()

    session.update.average.close_epoch = spy
    seen = []
    train(session, after_epoch=lambda record: seen.append(session.model.state_dict()["target_norm.weight"].clone()))
    weights = [end["target_norm.weight"] for end in ends]
    assert torch.allclose(seen[0], weights[0])
    assert torch.allclose(seen[2], (weights[1] + weights[2]) / 2)
    assert torch.equal(session.model.target_norm.weight, weights[2])


def test_a_run_that_was_stopped_ends_in_the_same_bits(tmp_path: Path) -> None:
    setting = task("multi30k").setting("smart", overrides={**SHORT, "epochs": 3, "average_epochs": 2})
    execute(setting, tmp_path / "whole")

    class Stop(Exception):
        pass

    def watch(session) -> None:
        if session.progress.step == 5 and not stopped:
            stopped.append(5)
            raise Stop

    stopped: list[int] = []
    with pytest.raises(Stop):
        execute(setting, tmp_path / "parts", checkpoint_every=0, watch=watch)
    execute(setting, tmp_path / "parts", checkpoint_every=0, watch=watch)
    whole, parts = (load(tmp_path / name)["best"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_papers_settings() -> None:
    """Table 8, appendix B.1 and section 4.2 of Zuo et al. 2021."""
    german, vietnamese = (task(name).setting("salt", "paper") for name in ("iwslt14-de-en", "iwslt15-en-vi"))
    names = ("lr", "step_size", "start", "radius", "steps", "beam", "length_penalty", "update", "norm")
    assert [german[name] for name in names] == [1e-3, 1e-4, 1e-4, 0.3, 1, 9, 1.5, "raw", "l2"]
    assert [vietnamese[name] for name in names] == [1e-3, 1e-5, 1e-4, 0.1, 1, 10, 1.0, "raw", "l2"]
    shape = ("width", "inner", "heads", "layers", "pieces", "beta2")
    assert [german[name] for name in shape] == [512, 1024, 4, 6, 10_000, 0.98]
    assert [vietnamese[name] for name in shape] == [512, 2048, 8, 6, 10_000, 0.98]
    assert german["tokens"] * german["accumulate"] == 64_000
    big = task("wmt16-en-de").setting("salt", "paper")
    assert [big[name] for name in names] == [1e-3, 1e-4, 1e-4, 0.3, 1, 4, 0.6, "raw", "l2"]
    assert [big[name] for name in shape] == [1024, 4096, 16, 6, 32_000, 0.98]
    assert big["tokens"] * big["accumulate"] == 450_000
    assert "section 4.2" in task("iwslt14-de-en").paper


def test_generated_pairs_are_words_backwards_with_the_verb_last() -> None:
    pairs = generated(20, seed=4)
    for first, second in zip(pairs.first, pairs.second, strict=True):
        words, written = first.split(), [word[::-1] for word in second.split()]
        assert written == [*words[:2], *words[3:], words[2]]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        (tmp_path / "multi30k" / f"{split}.de").write_text("ein hund\neine katze\n")
        (tmp_path / "multi30k" / f"{split}.en").write_text("a dog\n" + ("a cat\n" if split != "train" else ""))
    setting = task("multi30k").setting("plain", "small", data=tmp_path)
    with pytest.raises(DataError, match=r"multi30k/train\.en: has 1 lines, but multi30k/train\.de has 2"):
        task("multi30k").load(setting)
    (tmp_path / "multi30k/train.en").write_text("\n\n")
    with pytest.raises(DataError, match=r"multi30k/train\.en: holds no word, only empty lines"):
        task("multi30k").load(setting)
    with pytest.raises(DataError, match="multi30k has no split 'dev'"):
        task("multi30k").load(task("multi30k").setting("plain", "small", data=tmp_path, overrides={"train": "dev"}))
    changes = {"train": "test_2016_flickr"}
    with pytest.raises(LabError, match="train=test_2016_flickr does not fit; it is what multi30k is tested on"):
        task("multi30k").load(task("multi30k").setting("plain", "small", data=tmp_path, overrides=changes))
    with pytest.raises(LabError, match=r"length=2 leaves no sentence pair; the shortest needs \d+$") as error:
        task("multi30k").load(task("multi30k").setting("plain", overrides={**SHORT, "length": 2}))
    needed = int(str(error.value).split()[-1])
    with pytest.raises(LabError, match=f"the shortest needs {needed}$"):
        task("multi30k").load(task("multi30k").setting("plain", overrides={**SHORT, "length": needed - 1}))
    assert (
        len(task("multi30k").load(task("multi30k").setting("plain", overrides={**SHORT, "length": needed})).train) >= 1
    )
    with pytest.raises(LabError, match="beam=0 does not fit; it must be at least 1"):
        prepare(task("multi30k").setting("plain", overrides={**SHORT, "beam": 0}))
    with pytest.raises(ValueError, match="width=32 does not divide among 5 heads; use a multiple of 5, such as 35"):
        prepare(task("multi30k").setting("plain", overrides={**SHORT, "heads": 5}))
    with pytest.raises(LabError, match="beta2=1 does not fit; it must lie below 1"):
        task("multi30k").setting("plain", overrides={"beta2": 1})
    with pytest.raises(LabError, match="tokens=3 does not hold 1 example"):
        prepare(task("multi30k").setting("plain", overrides={**SHORT, "tokens": 3}))


def test_pieces_of_published_text_are_joined_again(tmp_path: Path) -> None:
    (tmp_path / "wmt16-en-de").mkdir()
    for split in ("train.tok.clean", "newstest2013.tok", "newstest2014.tok"):
        (tmp_path / "wmt16-en-de" / f"{split}.bpe.32000.en").write_text("the low@@ er house .\n" * 3)
        (tmp_path / "wmt16-en-de" / f"{split}.bpe.32000.de").write_text("das Unter@@ haus .\n" * 3)
    setting = task("wmt16-en-de").setting("plain", "small", data=tmp_path, overrides={"pieces": 60})
    data = task("wmt16-en-de").load(setting)
    assert data.test.references[0] == "das Unterhaus ."
    assert data.test.pieces.decode(data.test.inputs["source"][0].tolist()) == "the lower house ."


def test_real_files(data_folder: Path) -> None:
    few = {"examples": 80, "pieces": 200}
    data = task("multi30k").load(task("multi30k").setting("plain", "small", data=data_folder, overrides=few))
    assert (len(data.validation), len(data.test)) == (1014, 1000)
    few["train"] = "train-1k"
    data = task("iwslt15-en-vi").load(task("iwslt15-en-vi").setting("plain", "small", data=data_folder, overrides=few))
    assert (len(data.train), len(data.validation), len(data.test)) == (60, 1553, 1268)  # 20 are longer than 80 pieces
    few["train"] = "valid"
    data = task("iwslt14-de-en").load(task("iwslt14-de-en").setting("plain", "small", data=data_folder, overrides=few))
    assert (len(data.validation), len(data.test)) == (728, 6750)


def test_the_example_of_the_docs_translates() -> None:
    page = Path(__file__).parents[3] / "docs" / "translation.md"
    code = page.read_text().partition("```python\n")[2].partition("```")[0].strip().splitlines()
    scope: dict[str, object] = {}
    exec("\n".join(code[:-1]), scope)
    assert eval(code[-1], scope) == scope["english"]


def test_plain_epochs_may_come_first_and_are_shared_by_methods_and_seeds(tmp_path: Path) -> None:
    changes = {"epochs": 0, "first_epochs": 2, "examples": 60, "width": 16, "lr": 1e-3, "schedule": "linear"}
    settings = [
        task("multi30k").setting(method, seed=seed, overrides=changes) for method, seed in (("plain", 1), ("vat", 2))
    ]
    for setting in settings:
        execute(setting, folder_of(tmp_path, setting))
    (stage,) = (file.parent for file in tmp_path.glob("multi30k/tiny/plain@*/seed-0/result.json"))
    values = json.loads((stage / "config.json").read_text())["values"]
    assert [values[name] for name in ("epochs", "first_epochs", "examples", "width", "lr", "schedule")] == [
        2, 0, 60, 16, 1e-2, "inverse_sqrt"]  # fmt: skip
    learnt = load(stage)["best"]
    for setting in settings:  # without an epoch of its own a run ends where it began
        mine = load(folder_of(tmp_path, setting))["best"]
        assert all(torch.equal(mine[name], learnt[name]) for name in learnt)
    fresh = prepare(settings[0]).model.state_dict()
    assert not torch.equal(fresh["source_words.weight"], learnt["source_words.weight"])


def test_the_free_methods_ascend() -> None:
    """Batches by tokens hardly ever share a shape, so a single pass of FreeAT would be plain training under another name."""
    losses = {}
    for name in ("plain", "free_at", "free_lb"):
        session = prepare(task("multi30k").setting(name, overrides=SHORT))
        inputs, targets = session.data.train.batch(torch.arange(6))
        losses[name] = [float(loss.detach()) for loss in walk(session, inputs, targets)]
    assert len(losses["plain"]) == 1
    assert len(losses["free_at"]) == len(losses["free_lb"]) == 3
    assert losses["free_at"][0] == losses["plain"][0]
    assert (
        losses["free_at"][2] > losses["free_at"][1] > losses["free_at"][0]
    )  # no update between: nothing but the ascent
    with pytest.raises(
        LabError, match="steps=1 leaves free_at no ascent: its first point is the start; use at least 2"
    ):
        prepare(task("multi30k").setting("free_at", overrides={**SHORT, "steps": 1}))


def walk(session: Any, inputs: Any, targets: Any) -> Iterator[torch.Tensor]:
    """The losses of a step, each after its backward pass; dropout is left out."""
    session.model.eval()
    for loss in session.objective.steps(inputs, targets):
        loss.backward()
        yield loss
