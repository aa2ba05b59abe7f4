"""Language models and sentiment: what is perturbed and what is not, stages on real formats, and bad input in one sentence."""

import json
from pathlib import Path

import pytest
import torch

import sparring as sp
from sparring.lab.cli.main import main
from sparring.lab.data import DataError
from sparring.lab.data.imdb import elec
from sparring.lab.data.language import EOS
from sparring.lab.errors import LabError
from sparring.lab.registry import task
from sparring.lab.runs.checkpoint import load
from sparring.lab.runs.run import prepare
from sparring.lab.tasks.sentiment.data import read
from sparring.lab.tasks.sentiment.task import adopt
from sparring.lab.training.train import train, undisturbed

SMALL = ["--scale", "small", "--set", "vectors=", "--set", "size=8", "--set", "hidden=60", "--set", "held=4", "--set", "epochs=1",
         "--set", "epoch_batches=2", "--set", "batch=2", "--set", "labelled=8", "--set", "minimum=1", "--set", "first_epochs=1"]  # fmt: skip


def reviews(root: Path, words: str = "a good film with a plot and no end", unsup: int = 70) -> Path:
    """A folder in IMDB's format."""
    for split, kinds in (("train", ("neg", "pos", "unsup")), ("test", ("neg", "pos"))):
        for kind in kinds:
            folder = root / "imdb/aclImdb" / split / kind
            folder.mkdir(parents=True)
            for number in range(unsup if kind == "unsup" else 60):
                folder.joinpath(f"{number}_{1 if kind == 'neg' else 9}.txt").write_text(
                    f"{words} {kind} {number % 5}" * 3
                )
    return root


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    return code, capsys.readouterr().err.strip().splitlines()[-1]


def session_of(name: str, method: str, **changes: object):
    session = prepare(task(name).setting(method, overrides=changes))
    session.model.train()
    return session


@pytest.mark.parametrize("method", ["vat", "adversarial_training", "adversarial_dropout_vat"])
def test_neither_the_end_token_nor_padding_is_ever_perturbed(method: str) -> None:
    session = session_of("imdb", method, truncate=100)
    tokens, targets = session.batch(next(iter(session.batches())))
    seen: list[torch.Tensor] = []
    session.model.lstm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    session.objective(tokens, targets)
    moved = seen[-1] - seen[0]  # the last pass repeats the clean pass's dropout
    words = session.data.extra["vocabulary"]
    frozen = (tokens == words.index[EOS]) | (tokens == words.pad)
    assert int(frozen.sum()) >= len(tokens)
    assert float(moved[frozen].abs().max()) == 0.0
    assert bool((moved[~frozen].abs().amax(-1) > 0).any())


def test_masks_and_word_vectors_share_one_clean_pass() -> None:
    session = session_of("imdb", "adversarial_dropout_vat", truncate=100)
    tokens, targets = session.batch(next(iter(session.batches())))
    session.objective(tokens, targets)
    notes = session.objective.diagnostics
    assert {"adversarial_dropout/penalty", "vat/penalty", "clean_loss"} <= set(notes)
    assert notes["forward_passes"] == 1 + 2 + 2
    total = notes["clean_loss"] + notes["adversarial_dropout/penalty"] + notes["vat/penalty"]
    assert notes["loss"] == pytest.approx(total, rel=1e-4)


def test_a_mask_in_pieces_is_found_for_the_piece_that_counts() -> None:
    """A review longer than `truncate` gets its adversarial mask where gradients flow."""
    session = session_of("imdb", "adversarial_dropout", truncate=4)
    tokens, targets = session.batch(next(iter(session.batches())))
    assert tokens.shape[1] > 4
    session.objective(tokens, targets).backward()
    assert session.objective.diagnostics["adversarial_dropout/flips"] > 0
    assert session.objective.diagnostics["adversarial_dropout/penalty"] > 0


def test_the_classifier_takes_over_embedding_and_lstm_only() -> None:
    reader, classifier = session_of("imdb-words", "plain").model, session_of("imdb", "plain").model
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    assert not adopt(classifier, reader.state_dict(), task("imdb").setting("plain", "tiny"))
    for name, value in classifier.state_dict().items():
        expected = reader.state_dict()[name] if name.startswith(("embedding", "lstm")) else before[name]
        assert torch.equal(value, expected), name


def test_the_methods_of_the_tables_are_there() -> None:
    """Tables 1, 2 and 3."""
    assert {m.name for m in task("imdb").methods} >= {
        "plain", "adversarial_training", "vat", "variational_dropout", "expectation_linear", "fraternal_dropout",
        "adversarial_dropout_last", "adversarial_dropout", "adversarial_dropout_k2", "adversarial_dropout_vat", "adversarial_dropout_k2_vat",
    }  # fmt: skip
    assert {m.name for m in task("ptb").methods} >= {
        "plain", "variational_dropout", "expectation_linear", "fraternal_dropout", "adversarial_dropout", "r_drop",
    }  # fmt: skip
    assert {m.name for m in task("smnist").methods} >= {"adversarial_dropout_last", "adversarial_dropout_vat"}


def test_the_adversary_of_the_language_model_flips_a_share_of_every_row() -> None:
    session = session_of("ptb", "adversarial_dropout")
    inputs, targets = session.batch(next(iter(session.batches())))
    session.objective(inputs, targets)
    flips = session.objective.diagnostics["adversarial_dropout/flips"]
    assert 0 < flips <= int(0.1 * session.setting["size"])  # the mean over rows; `delta` of a row at most


def test_a_smaller_vocabulary_keeps_the_most_frequent_words_of_the_whole_training_text(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", "a b c\n a b d\n a c c c\n"), ("valid", "a z c\n"), ("test", "d c\n")):
        (tmp_path / f"ptb/ptb.{split}.txt").write_text(text)
    known = task("ptb")
    whole, cut = (
        known.load(known.setting("plain", "small", 0, tmp_path, {"vocabulary": count, "words": 6})) for count in (0, 3)
    )
    assert whole.extra["vocabulary"].words == ("<pad>", "<unk>", "c", "<eos>", "a", "b", "d")
    assert cut.extra["vocabulary"].words == ("<pad>", "<unk>", "c", "<eos>", "a")  # counted beyond the six words read
    assert cut.train.inputs.tolist() == [4, 1, 2, 3, 4, 1]
    assert [part.inputs.tolist() for part in (cut.validation, cut.test)] == [[4, 1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("name", ["ptb", "imdb-words"])
def test_perplexity_is_that_of_every_word_however_the_windows_fall(name: str) -> None:
    """Ten columns read in one go, the whole vocabulary, against windows of which the last is shorter."""
    session = session_of(name, "plain")
    words = session.data.validation.inputs[: session.setting.values.get("scored")]
    steps = len(words) // 10
    columns = words[: 10 * steps].view(10, steps)
    with undisturbed(session.model), torch.no_grad():
        found = session.task.evaluate(session.model, session.data.validation, session.setting)
        states = session.model(columns[:, :-1]).outputs[..., : session.model.table.shape[1]]
        logits = states @ session.model.table.t() + session.model.bias
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), columns[:, 1:].flatten())
    assert (steps - 1) % (70 if name == "ptb" else session.setting["window"]), "the last window must be shorter"
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-4)


def test_both_stages_start_from_given_word_vectors(tmp_path: Path) -> None:
    (reviews(tmp_path) / "glove").mkdir()
    (tmp_path / "glove/g.txt").write_text("film 4 5 6\nnowhere 7 8 9\ngood 1 2 3\n")
    changes = {
        "labelled": 8,
        "held": 4,
        "unlabelled": 20,
        "minimum": 1,
        "size": 3,
        "hidden": 5,
        "vectors": "glove/g.txt",
    }
    for name in ("imdb-words", "imdb"):
        session = prepare(task(name).setting("plain", "small", data=tmp_path, overrides=changes))
        row, table = session.data.extra["vocabulary"].index, session.model.embedding.weight
        assert table[row["good"]].tolist() == [1, 2, 3]
        assert table[row["film"]].tolist() == [4, 5, 6]
        assert float(table[row["plot"]].detach().abs().max()) < 1, "drawn"


def test_reviews_of_a_folder_are_read_in_both_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = reviews(tmp_path / "data"), tmp_path / "out"
    where = ["--data", str(data), "--out", str(out)]
    assert main(["run", "imdb", *SMALL, *where, "--set", "unlabelled=150"]) == 0
    (stage,) = (out / "imdb-words/small").glob("*/seed-0/result.json")
    written = stage.stat().st_mtime_ns
    assert main(["run", "imdb", "--method", "vat", "--seed", "1", *SMALL, *where, "--set", "unlabelled=150"]) == 0
    assert stage.stat().st_mtime_ns == written  # shared, not trained again
    reviews(tmp_path / "other", words="some quite other words")
    where[1] = str(tmp_path / "other")
    code, sentence = complaint(capsys, "run", "imdb", "--seed", "2", *SMALL, *where, "--set", "unlabelled=150")
    assert code != 0
    assert "data" in sentence


def test_reviews_without_unlabelled_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = reviews(tmp_path / "data", unsup=0)
    where = ["--data", str(data), "--out", str(tmp_path / "out"), *SMALL]
    code, sentence = complaint(capsys, "run", "imdb", "--method", "vat", *where, "--set", "unlabelled=150")
    assert (code, "train/unsup holds no review; the published archive has 50,000 there" in sentence) == (3, True)


def test_unlabelled_reviews_are_of_every_class(tmp_path: Path) -> None:
    """Fewer than there are: the files come class by class, and the first ones would all be negative."""
    setting = task("imdb").setting(
        "vat", "small", data=reviews(tmp_path), overrides={"labelled": 8, "held": 4, "unlabelled": 40, "vectors": "", "minimum": 1}
    )  # fmt: skip
    data = task("imdb").load(setting)
    words = data.extra["vocabulary"]
    more = [words.decode(row.tolist()) for row in data.unlabelled.batch(slice(8, None))[0]]
    assert len(more) == 40
    kinds = [sum(any(word.startswith(kind) for word in row) for row in more) for kind in ("neg", "pos")]
    assert sum(kinds) == 40
    assert min(kinds) >= 10


def test_perplexity_is_of_reviews_of_every_class(tmp_path: Path) -> None:
    """Only the first `scored` words are read, and the files come class by class."""
    changes = {"labelled": 8, "held": 40, "unlabelled": 20, "vectors": "", "minimum": 1}
    data = task("imdb-words").load(task("imdb-words").setting("plain", "small", 0, reviews(tmp_path), changes))
    for split in (data.validation, data.test):
        words = data.extra["vocabulary"].decode(split.inputs[: len(split) // 4].tolist())
        assert {"neg", "pos"} <= set(words)


def test_an_empty_review_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = reviews(tmp_path / "data")
    (data / "imdb/aclImdb/train/neg/3_1.txt").write_text("  <br />")
    code, sentence = complaint(capsys, "run", "imdb", "--data", str(data), "--out", str(tmp_path / "out"), *SMALL)
    assert (code, "neg/3_1.txt: is an empty review; remove it" in sentence) == (3, True)


def test_a_corpus_without_its_validation_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb/ptb.train.txt").write_text("a b c\n" * 50)
    code, sentence = complaint(
        capsys, "run", "ptb", "--scale", "small", "--data", str(tmp_path), "--out", str(tmp_path / "o")
    )
    assert (code, sentence.startswith("sparring: ptb/ptb.valid.txt is not under")) == (3, True)


def test_a_corpus_of_empty_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", "a b c\n" * 50), ("valid", "\n"), ("test", "a b\n")):
        (tmp_path / f"ptb/ptb.{split}.txt").write_text(text)
    where = ["--scale", "small", "--data", str(tmp_path), "--out", str(tmp_path / "o")]
    code, sentence = complaint(capsys, "run", "ptb", *where)
    assert (code, sentence) == (3, "sparring: ptb/ptb.valid.txt: holds no word, only empty lines")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("ptb", "window=0", "a window has at least one word"),
        ("ptb", "layers=0", "AWDLSTM(layers=0): at least 1"),
        ("ptb", "vocabulary=-1", "vocabulary=-1 does not fit; it must be at least 0"),
        ("ptb", "unlabelled_batch=32", "unlabelled_batch=32 means nothing here: ptb has no unlabelled data"),
        ("ptb", "epoch_batches=3", "epoch_batches=3 means nothing here: ptb reads a text"),
        ("ptb", "tokens=300", "tokens=300 means nothing here: ptb reads a text"),
        ("sequential-digits", "unlabelled_batch=32", "sequential-digits has no unlabelled data"),
        ("imdb", "vocabulary=2", "vocabulary=2 does not fit; 0 takes every word, 4 would be"),
        ("imdb", "longest=-5", "longest=-5 does not fit; it must be at least 0"),
        ("imdb", "truncate=0", "gradients flow back through at least 1 word"),
        ("imdb", "held=0", "at least one review must be held out"),
    ],
)
def test_settings_that_mean_nothing(
    name: str, change: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", change, *(["--set", "pretrained=false"] if name == "imdb" else [])]
    code, sentence = complaint(capsys, "run", name, *given, "--out", str(tmp_path))
    assert (code, said in sentence) == (2, True)


def test_validation_images_are_never_trained_on() -> None:
    with pytest.raises(LabError, match="examples=60000 does not fit; at most 55,000 train"):
        task("smnist").load(task("smnist").setting("plain", "small", overrides={"examples": 60_000}))


def test_a_text_too_short_for_its_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, sentence = complaint(capsys, "run", "ptb", "--out", str(tmp_path), "--set", "batch=4000")
    assert (code, "has no 4000 columns" in sentence) == (2, True)


def test_elec_in_its_published_format(tmp_path: Path) -> None:
    folder = tmp_path / "elec"
    folder.mkdir()
    for stem in ("elec-25k-train", "elec-test"):
        (folder / f"{stem}.txt.tok").write_text("it works .\nit broke .\n")
        (folder / f"{stem}.cat").write_text("2\n1\n")
    found = elec("train", tmp_path)
    assert (found.first, found.labels.tolist()) == (["it works .", "it broke ."], [1, 0])
    (folder / "elec-test.cat").write_text("2\n")
    with pytest.raises(DataError, match="has 1 classes for 2 reviews"):
        elec("test", tmp_path)
    (folder / "elec-test.cat").write_text("2\n5\n")
    with pytest.raises(DataError, match="line 2: has the class '5'; a class is 1 or 2"):
        elec("test", tmp_path)
    (folder / "elec-test.txt.tok").write_text("fine\n\n")
    with pytest.raises(DataError, match="line 2: holds an empty review"):
        elec("test", tmp_path)


def test_copies_in_elec_are_taken_once_and_never_twice_into_training(tmp_path: Path) -> None:
    """Section 5.2: no review of the unlabelled text stands among the labelled ones, validation and test included."""
    folder = tmp_path / "elec"
    folder.mkdir()
    train = [f"review {k // 2} is good" for k in range(20)]
    (folder / "elec-25k-train.txt.tok").write_text("\n".join(train) + "\n")
    (folder / "elec-25k-train.cat").write_text("1\n2\n" * 10)
    (folder / "elec-test.txt.tok").write_text("unseen one\nunseen two\n")
    (folder / "elec-test.cat").write_text("1\n2\n")
    for name, rows in (("00", [*train, "unseen one", "new"]), ("01", ["new", "newer"])):
        (folder / f"elec-25k-unlab{name}.txt.tok").write_text("\n".join(rows) + "\n")
    known, test, more, _ = read("elec", tmp_path)
    assert known.first == [f"review {k} is good" for k in range(10)]
    assert (test.first, more()) == (["unseen one", "unseen two"], ["new", "newer"])


def test_perplexity_of_hardly_any_words_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "run", "imdb-words", "--set", "scored=1", "--set", "epochs=0", "--out", str(tmp_path))
    assert said == (2, "sparring: scored=1 does not fit; it must be at least 4 words")


def test_the_stand_in_for_elec_has_nothing_unlabelled(data_folder: Path, tmp_path: Path) -> None:
    setting = task("elec").setting("vat", "small", 0, data_folder, {"unlabelled": 5000})
    with pytest.raises(DataError, match="no reviews beyond its labelled ones"):
        task("elec").load(setting)
    data = task("elec").load(task("elec").setting("vat", "small", 0, data_folder))
    assert len(data.unlabelled) == len(data.train) == 1_000


def test_reviews_that_stand_twice_in_the_stand_in_for_elec_are_taken_once(data_folder: Path) -> None:
    known, test, _, _ = read("elec", data_folder)
    assert len(known) + len(test) == len({*known.first, *test.first}) == 1_965


def test_fine_tuning_goes_on_from_its_own_method_and_seed(tmp_path: Path) -> None:
    assert main(["run", "ptb-tuned", "--method", "fraternal_dropout", "--seed", "3", "--out", str(tmp_path)]) == 0
    (stage,) = tmp_path.glob("ptb/tiny/fraternal_dropout*/seed-3/result.json")
    first, second = (json.loads(p.read_text()) for p in (stage, next(tmp_path.glob("ptb-tuned/**/result.json"))))
    assert second["validation"]["perplexity"] < first["validation"]["perplexity"]


def test_fine_tuning_keeps_the_weights_it_starts_from_where_no_epoch_is_better(tmp_path: Path) -> None:
    """The released finetune.py scores them first and saves only what is better."""
    assert main(["run", "ptb-tuned", "--method", "plain", "--out", str(tmp_path)]) == 0
    (fine,) = tmp_path.glob("ptb-tuned/**/result.json")
    (stage,) = tmp_path.glob("ptb/tiny/plain*/seed-0/result.json")
    setting = task("ptb-tuned").setting("plain", overrides={"lr": 1e4})
    session = prepare(setting, start=load(stage.parent)["best"])
    train(session)
    learnt = json.loads(stage.read_text())
    assert session.progress.epoch == 1
    assert session.progress.best_epoch == 0
    assert session.progress.best == pytest.approx(learnt["validation"]["perplexity"], rel=1e-6)
    assert all(torch.equal(value, load(stage.parent)["best"][name]) for name, value in session.best_weights.items())
    assert json.loads(fine.read_text())["validation"]["perplexity"] <= learnt["validation"]["perplexity"]


def test_fine_tuning_drops_recurrently_what_training_did() -> None:
    """A penalty is no longer charged, but variational dropout is dropout: without it nothing recurrent would be dropped."""
    for method in task("ptb").methods:
        setting = task("ptb-tuned").setting(method.name)
        session = prepare(setting)
        terms = [term.name for term in session.objective.terms]
        assert terms == (["variational_dropout"] if method.name == "variational_dropout" else [])
        assert bool(terms) != bool(setting["drop_weights"])


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
@pytest.mark.parametrize("method", [method.name for method in task("ptb").methods])
def test_fine_tuning_keeps_dropout_and_activation_regularisers(method: str, scale: str) -> None:
    """As AWD-LSTM's finetune.py, whose defaults are those of main.py."""
    first, then = (task(name).setting(method, scale) for name in ("ptb", "ptb-tuned"))
    same = [name for name in first.values if name in ("alpha", "beta", "lr", "clip") or name.startswith("drop_")]
    assert {name: then[name] for name in same} == {name: first[name] for name in same}
    stage = task("ptb-tuned").stage.run(task("ptb-tuned").setting(method, scale, overrides={"alpha": 0.5}))
    assert stage["alpha"] == 0.5
    if "weight" in first:
        stage = task("ptb-tuned").stage.run(task("ptb-tuned").setting(method, scale, overrides={"weight": 0.7}))
        assert stage["weight"] == 0.7, "what the first run charges can be chosen here"


def test_penalties_over_the_vocabulary_reach_the_lab() -> None:
    """The language model's penalty is the mean over words: with weight .1 it is small beside the cross-entropy."""
    session = session_of("ptb", "fraternal_dropout")
    inputs, targets = session.batch(next(iter(session.batches())))
    session.objective(inputs, targets)
    notes = session.objective.diagnostics
    assert 0 < notes["fraternal_dropout/penalty"] < notes["clean_loss"]
    assert isinstance(session.objective, sp.Objective)
