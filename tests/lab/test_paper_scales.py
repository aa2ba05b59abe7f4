"""Every number of the `paper` scales of recurrent tasks, sentences and translation, and the optimisers of the others, with the source beside it.

P: Adversarial Dropout for Recurrent Neural Networks (section or appendix). S: its released code for sequential MNIST
(train.py, utilities.py). T: its released code for text. L: its language model, as noted from its authors. A: AWD-LSTM's
repository (README and defaults). F: fraternal dropout's repository. M: Miyato, Dai and Goodfellow (2017) and their code. V: Miyato et al. (2018), appendix D. Z: SALT (Zuo et al. 2021).
B: the Transformer of Vaswani et al. (2017), which Z 4.2 names. Q: fairseq's examples, whose scripts Z B.1 names. O: our own choice, where the
paper is silent or the data set is not in it.
"""

import math

import numpy as np
import pytest
import torch

import sparring as sp
from sparring.lab.models.recurrent import SequenceClassifier
from sparring.lab.registry import task
from sparring.lab.studies.library import studies
from sparring.lab.tasks import glue, translation
from sparring.lab.tasks.sequences.task import order, sequences

SEQUENCES = [
    ("plain", "hidden", 100, "P 5.1"), ("plain", "epochs", 250, "S num_epochs"), ("plain", "batch", 100, "S batch_size"),
    ("plain", "optimiser", "rmsprop", "P app. 4"), ("plain", "smoothing", 0.5, "P app. 4"), ("plain", "lr", 1e-3, "P app. 4"),
    ("plain", "clip_value", 1.0, "S clip_by_value; P app. 4 says by norm"), ("plain", "clip", 0.0, "S"),
    ("plain", "schedule", "gaussian", "S rampdown"), ("plain", "decay_from", 0.8, "P app. 4: the last 50 epochs"),
    ("plain", "init", "released", "S orthogonal_initializer"), ("plain", "step", 1, "P 5.1: pixel by pixel"),
    ("plain", "pool", 1, "P 5.1"), ("plain", "examples", 0, "S: 55,000 images"), ("plain", "tested", 0, "S: 10,000 images"),
    ("variational_dropout", "keep", 0.9, "P app. 4"), ("fraternal_dropout", "keep", 0.9, "P app. 4"),
    ("fraternal_dropout", "weight", 1.0, "P app. 4: lambda_T = 1"),
    ("adversarial_dropout", "flips", 0.03, "P 5.1"), ("adversarial_dropout", "steps", 1, "P table 1"),
    ("adversarial_dropout_k2", "steps", 2, "P table 1"), ("adversarial_dropout", "penalty", "js", "P app. 4"),
    ("adversarial_dropout", "weight", 1.0, "S lamb"), ("adversarial_dropout", "ramp", 50 / 250, "S rampup(i, 50)"),
    ("plain", "validated", 0, "S: 5,000 images"), ("variational_dropout", "masks", "keep", "P 3; S divides by the active share"),
    ("expectation_linear", "keep", 0.9, "P app. 4"), ("expectation_linear", "weight", 1.0, "P app. 4: lambda_T = 1"),
    *((f"adversarial_dropout{which}", *row) for which in ("_k2", "_last", "_vat") for row in (
        ("flips", 0.03, "P 5.1"), ("penalty", "js", "P app. 4"), ("weight", 1.0, "S lamb"), ("ramp", 50 / 250, "S rampup(i, 50)"))),
    ("adversarial_dropout_last", "steps", 1, "O"), ("adversarial_dropout_vat", "steps", 2, "O"), ("salt", "steps", 1, "O"),
    *((method, "radius", 0.5, "O") for method in ("adversarial_dropout_vat", "vat", "adversarial_training", "salt")),
    *((method, "start", 1.0, "O") for method in ("adversarial_dropout_vat", "vat")),
]  # fmt: skip
LANGUAGE = [
    ("plain", "layers", 3, "P 5.3"), ("plain", "size", 400, "P 5.3"), ("plain", "hidden", 1150, "P 5.3"),
    ("plain", "epochs", 750, "L"), ("plain", "optimiser", "sgd", "A"), ("plain", "momentum", 0.0, "A"),
    ("plain", "lr", 30.0, "A, F"), ("plain", "clip", 0.25, "A, F"), ("plain", "weight_decay", 1.2e-6, "A, F"),
    ("plain", "window", 70, "A bptt"), ("plain", "varied", True, "A"), ("plain", "average", "stalled", "A"),
    ("plain", "average_patience", 60, "L; 5 in A"), ("plain", "alpha", 2.0, "A"), ("plain", "beta", 1.0, "A"),
    ("plain", "drop_words", 0.1, "A dropoute"), ("plain", "drop_output", 0.4, "A dropout"), ("plain", "drop_weights", 0.5, "A wdrop"),
    ("fraternal_dropout", "weight", 0.15, "F"), ("expectation_linear", "weight", 0.25, "O: F's number, whose whole pass has no dropout at all"),
    ("fraternal_dropout", "alpha", 0.0, "F"), ("adversarial_dropout", "alpha", 0.0, "P 5.3"), ("adversarial_dropout", "beta", 0.0, "P 5.3"),
    ("adversarial_dropout", "delta", 0.06, "P app. 6"), ("adversarial_dropout", "weight", 0.1, "L"), ("adversarial_dropout", "ramp", 100.0, "L"),
    ("plain", "words", 0, "P 5.3: the whole text"), ("plain", "vocabulary", 0, "P 5.3: all words"), ("variational_dropout", "keep", 0.75, "O"),
    ("variational_dropout", "drop_weights", 0.0, "O: a mask of states instead"), ("adversarial_dropout", "steps", 1, "O: P 5.3 names no K"),
    *((method, name, 0.0, "F") for method in ("expectation_linear", "fraternal_dropout") for name in ("alpha", "beta", "ramp")),
    *((method, name, 0.0, "O: as F") for method in ("r_drop",) for name in ("alpha", "beta", "ramp")), ("r_drop", "weight", 1.0, "O"),
    *((f"adversarial_dropout{which}", *row) for which in ("_k2", "_states") for row in (
        ("alpha", 0.0, "P 5.3"), ("beta", 0.0, "P 5.3"), ("delta", 0.06, "P app. 6"), ("weight", 0.1, "L"), ("ramp", 100.0, "L"))),
    ("adversarial_dropout_k2", "steps", 2, "O"), ("adversarial_dropout_states", "steps", 1, "O"),
]  # fmt: skip
PTB = [("plain", "batch", 20, "A"), ("plain", "drop_input", 0.4, "A"), ("plain", "drop_hidden", 0.3, "L; .25 in A")]
WIKITEXT = [("plain", "batch", 80, "A"), ("plain", "drop_input", 0.65, "A"), ("plain", "drop_hidden", 0.2, "A")]
SENTIMENT = [
    ("plain", "hidden", 1024, "P app. 5"), ("plain", "head", 30, "P app. 5"), ("plain", "batch", 64, "P app. 5"),
    ("plain", "optimiser", "adam", "P app. 5"), ("plain", "lr", 5e-4, "P app. 5"), ("plain", "schedule", "exponential", "P app. 5"),
    ("plain", "lr_decay", 0.9998, "P app. 5"), ("plain", "clip", 1.0, "P app. 5"), ("plain", "clip_except", "embedding", "P app. 5"),
    ("plain", "truncate", 400, "P app. 5"), ("plain", "drop", 0.5, "P app. 5"), ("plain", "longest", 0, "P app. 5: nothing is cut off"),
    ("plain", "labelled", 0, "P 5.2: all labelled reviews"), ("plain", "minimum", 2, "M: words in more than one document"),
    ("plain", "pretrained", True, "P table 2"), ("plain", "unlabelled_batch", 0, "P table 2: the loss alone"),
    ("vat", "radius", 5.0, "T perturb_norm_length"), ("vat", "look", 0.1, "T small_constant_for_finite_diff"),
    ("vat", "unlabelled_batch", 64, "P app. 5"), ("adversarial_training", "radius", 5.0, "T perturb_norm_length"),
    ("adversarial_dropout", "delta", 0.04, "P app. 5"), ("adversarial_dropout", "unlabelled_batch", 64, "P app. 5"),
    ("adversarial_dropout_k2", "steps", 2, "P table 2"), ("adversarial_dropout", "weight", 1.0, "P app. 5: lambda_T = 1"),
    ("plain", "epoch_batches", 500, "O: P app. 5 counts steps, see below"), ("plain", "first_epochs", 0, "O: as long as its own task says"),
    ("plain", "tested", 0, "P 5.2: all"), ("plain", "vectors", "", "P app. 5: the language model is the start"), ("plain", "vocabulary", 0, "M: all of them"),
    ("from_scratch", "pretrained", False, "O"), ("variational_dropout", "keep", 0.9, "O: P app. 5 chose it on validation"),
    *((method, *row) for method in ("expectation_linear", "fraternal_dropout") for row in (
        ("keep", 0.9, "O: P app. 5 chose it on validation"), ("weight", 1.0, "P app. 5: lambda_T = 1"), ("unlabelled_batch", 64, "P app. 5"))),
    *((f"adversarial_dropout{which}", *row) for which in ("_last", "_k2", "_vat", "_k2_vat") for row in (
        ("delta", 0.04, "P app. 5"), ("weight", 1.0, "P app. 5: lambda_T = 1"), ("unlabelled_batch", 64, "P app. 5"))),
    *((f"adversarial_dropout{which}", *row) for which in ("_vat", "_k2_vat") for row in (
        ("radius", 5.0, "T perturb_norm_length"), ("look", 0.1, "T small_constant_for_finite_diff"))),
    ("adversarial_dropout", "steps", 1, "P table 2"), ("adversarial_dropout_last", "steps", 1, "O"),
    ("adversarial_dropout_vat", "steps", 1, "P table 2"), ("adversarial_dropout_k2_vat", "steps", 2, "P table 2"),
]  # fmt: skip
IMDB = [
    ("plain", "size", 256, "P app. 5"),
    ("plain", "unlabelled", 50_000, "P 5.2"),
    ("plain", "held", 3_750, "M: 15 %"),
]
ELEC = [
    ("plain", "size", 512, "P app. 5"),
    ("plain", "unlabelled", 200_000, "P 5.2"),
    ("plain", "held", 3_750, "M: 15 %"),
]
READER = [
    ("plain", "optimiser", "adam", "P app. 5"), ("plain", "schedule", "exponential", "P app. 5"),
    ("plain", "hidden", 1024, "P app. 5"), ("plain", "sampled", 1024, "P app. 5"), ("plain", "batch", 256, "P app. 5"),
    ("plain", "lr", 1e-3, "P app. 5"), ("plain", "lr_decay", 0.9999, "P app. 5"), ("plain", "clip", 1.0, "P app. 5"),
    ("plain", "clip_except", "embedding", "P app. 5"), ("plain", "drop", 0.5, "P app. 5"), ("plain", "window", 400, "M"),
    ("plain", "epochs", 531, "O: P app. 5 counts steps, see below"), ("plain", "scored", 50_000, "O"), ("plain", "labelled", 0, "P app. 5: all"),
    ("plain", "tested", 0, "P 5.2: all"), ("plain", "minimum", 2, "M"), ("plain", "vectors", "", "P app. 5: random"), ("plain", "vocabulary", 0, "M: all of them"),
]  # fmt: skip
TUNED = [
    *((*row[:3], f"A finetune.py, its defaults are main.py's: {row[3]}") for row in LANGUAGE if row[:2] not in [("plain", "epochs"), ("plain", "average")]),
    ("plain", "epochs", 500, "A finetune.py"), ("plain", "first_epochs", 0, "O: as long as the first task says"), ("plain", "average", "always", "A finetune.py: ASGD with t0 = 0"),
    ("plain", "patience", 6, "A finetune.py: above the best that is more than five epochs old"),
]  # fmt: skip
FEW_LABELS = [
    ("plain", "optimiser", "adam", "V"), ("plain", "lr", 2e-3, "V"), ("plain", "schedule", "linear", "V"), ("plain", "decay_from", 0.5, "V"),
    ("plain", "batch", 64, "V"), ("vat", "unlabelled_batch", 256, "V"), ("plain", "epochs", 500, "V"), ("plain", "epoch_batches", 200, "V"),
]  # fmt: skip


def competing(follower: dict[str, tuple[object, str]]) -> list[tuple[str, str, object, str]]:
    """The methods of Z's tables and their controls: SALT's follower is Z's, and Z says nothing about that of the others."""
    climbing = ("adversarial_training", "free_at", "free_lb", "free_lb_regulariser", "smart", "vat")
    rows = [("salt", name, value, source) for name, (value, source) in follower.items()]
    rows += [
        (method, name, value, "O: as SALT")
        for method in ("noise", *climbing)
        for name, (value, _) in follower.items()
        if (name in ("radius", "norm") or method != "noise")
        and (name != "start" or not method.startswith("free_lb"))
        and (name != "steps" or not method.startswith("free"))
    ]
    rows += [
        (method, "weight", 1.0, "O: Z eq. 1 tunes alpha and does not name it")
        for method in ("noise", "r_drop", *climbing, "salt")
    ]
    rows += [
        (method, "start", "uniform", "O: FreeLB's own (Zhu et al. 2020, algorithm 1)")
        for method in ("free_lb", "free_lb_regulariser")
    ]
    rows += [
        (method, "steps", 3, "O: a first point and two of an ascent; Z's K of 1 has no ascent here")
        for method in ("free_at", "free_lb", "free_lb_regulariser")
    ]
    rows += [(method, "penalty", "kl", "Z app. A") for method in ("vat", "salt")]
    return [
        *rows, ("free_lb_regulariser", "penalty", "kl", "O: Z 4.1 names none, as SALT"), ("noise", "penalty", "kl", "O: as SALT"),
        ("smart", "penalty", "symmetric_kl", "O: SMART's own"), ("smart", "proximal_weight", 1.0, "O: equal parts"),
        ("r_drop", "penalty", "symmetric_kl", "O: R-Drop's own"), ("salt", "detach_clean", False, "Z eq. 4"),
        ("vat", "detach_clean", True, "V: what is predicted now is a constant; Z runs no VAT"), ("salt", "unroll", "autograd", "Z 4: higher"),
    ]  # fmt: skip


def borrowed(rows: list[tuple[str, str, object, str]], why: str) -> list[tuple[str, str, object, str]]:
    """The settings of another data set, for one that is not in the paper."""
    return [(*row[:3], why) for row in rows]


def translating(radius: float, step_size: float) -> list[tuple[str, str, object, str]]:
    """What the corpora have in common, and their followers."""
    follower: dict[str, tuple[object, str]] = {
        "radius": (radius, "Z table 8"), "norm": ("l2", "Z B.1"), "steps": (1, "Z table 8"), "step_size": (step_size, "Z table 8"),
        "start": (1e-4, "Z table 8"), "update": ("raw", "Z B.1: SGD, of SGD and Adam"),
    }  # fmt: skip
    return [
        ("plain", "encoder", "scratch", "Z 4.2"), ("plain", "first_epochs", 0, "O: each method from the start"), ("plain", "examples", 0, "Z table 1: all"), ("plain", "layers", 6, "Z 4.2: B"),
        ("plain", "pre_norm", False, "Z 4.2: B"), ("plain", "share", True, "Z 4.2: B, section 3.4"), ("plain", "dropout", 0.3, "O: Q"),
        ("plain", "label_smoothing", 0.1, "O: B, Q"), ("plain", "schedule", "inverse_sqrt", "O: B, Q"),
        ("plain", "warmup", 0.1, "O: a share, so that short runs have one"), ("plain", "average", "epochs", "O: B, Q"),
        ("plain", "optimiser", "adam", "Z B.1"), ("plain", "beta2", 0.98, "Z B.1"), ("plain", "lr", 1e-3, "Z table 8"), *competing(follower),
    ]  # fmt: skip


TALKS = [
    ("plain", "train", "train", "Z table 1"), ("plain", "length", 175, "Q"), ("plain", "width", 512, "Z 4.2"),
    ("plain", "pieces", 10_000, "O: Z B.1 has as many merges, here letters count too"), ("plain", "tokens", 8_000, "Z B.1"),
    ("plain", "accumulate", 8, "Z B.1: 64k tokens"), ("plain", "epochs", 100, "O: until nothing gets better"),
]  # fmt: skip
GERMAN = [
    *translating(0.3, 1e-4), *TALKS, ("plain", "heads", 4, "Z 4.2"), ("plain", "inner", 1024, "Z 4.2"),
    ("plain", "beam", 9, "Z table 8"), ("plain", "length_penalty", 1.5, "Z table 8"),
]  # fmt: skip
VIETNAMESE = [
    *translating(0.1, 1e-5), *TALKS, ("plain", "heads", 8, "Z 4.2"), ("plain", "inner", 2048, "Z 4.2"),
    ("plain", "beam", 10, "Z table 8"), ("plain", "length_penalty", 1.0, "Z table 8"),
]  # fmt: skip
NEWS = [
    *translating(0.3, 1e-4), ("plain", "train", "train.tok.clean.bpe.32000", "Z B.1: the pre-processed data"),
    ("plain", "length", 0, "Z B.1: the pre-processed data as they are"), ("plain", "width", 1024, "Z 4.2: big"), ("plain", "heads", 16, "Z 4.2: big"),
    ("plain", "inner", 4096, "Z 4.2: big"), ("plain", "pieces", 32_000, "O: the pre-processed data have as many merges, here letters count too"), ("plain", "tokens", 7_500, "O: a part of 450k"),
    ("plain", "accumulate", 60, "Z B.1: 450k tokens"), ("plain", "beam", 4, "Z table 8"), ("plain", "length_penalty", 0.6, "Z table 8"),
    ("plain", "epochs", 20, "O: until nothing gets better"),
]  # fmt: skip
TUNED_FOLLOWER: dict[str, tuple[object, str]] = {
    "radius": (1.0, "Z B.2"), "norm": ("l2", "Z B.2"), "steps": (2, "Z B.2"), "update": ("adam", "Z B.2"),
    "step_size": (1e-5, "Z B.2: of 1e-5 and lr"), "start": (1e-5, "Z B.2: of 1e-5 and 1e-4"),
}  # fmt: skip
TUNING = [
    ("plain", "encoder", "google-bert/bert-base-uncased", "Z 4.3"), ("plain", "freeze_words", False, "Z 4.3"),
    ("plain", "first", "", "Z 4.3: from BERT itself"), *(("plain", f"first_{name}", 0, "O: no first task") for name in ("epochs", "examples", "length")),
    ("plain", "examples", 0, "Z table 7: all"), ("plain", "validated", 0, "O: all of a tenth of the training set, the development set is the test"),
    ("plain", "length", 128, "O: memory"), ("plain", "width", 128, "O: not BERT's, of encoder=scratch"),
    ("plain", "layers", 2, "O: not BERT's, of encoder=scratch"), ("plain", "dropout", 0.1, "Z B.2"), ("plain", "epochs", 6, "Z B.2"),
    ("plain", "patience", 0, "Z B.2: all epochs, and the best one counts"), ("plain", "batch", 32, "Z B.2: of 4, 8, 16 and 32"),
    ("plain", "optimiser", "adam", "Z B.2"), ("plain", "beta2", 0.98, "Z B.2"), ("plain", "lr", 5e-5, "Z B.2: of 5e-5, 1e-4 and 5e-4"),
    ("plain", "clip", 1.0, "Z B.2"), ("plain", "schedule", "linear", "O: BERT's own"), ("plain", "warmup", 0.1, "O: BERT's own"),
    *competing(TUNED_FOLLOWER),
]  # fmt: skip
GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "anli")
BABI = [("plain", "epochs", 100, "O")]
TABLES = {
    "smnist": [*SEQUENCES, ("plain", "permuted", False, "P 5.1")], "pmnist": [*SEQUENCES, ("plain", "permuted", True, "P 5.1")],
    "ptb-tuned": [*TUNED, *PTB], "wikitext-2-tuned": [*TUNED, *WIKITEXT], "few-labels-mnist": FEW_LABELS,
    "multi30k": borrowed(GERMAN, "O: not in Z, as De-En"), "iwslt14-de-en": GERMAN, "iwslt15-en-vi": VIETNAMESE, "wmt16-en-de": NEWS,
    **dict.fromkeys(GLUE, TUNING), **dict.fromkeys(("snli", "multinli"), borrowed(TUNING, "O: not in Z, as MNLI")), "babi-1": BABI, "babi-2": BABI, "babi-3": BABI,
    "movielens-1m": [("vae-drop", "epochs", 200, "O"), ("vae-drop", "batch", 250, "O"), ("vae-drop", "lr", 1e-3, "O"), ("vae-drop", "optimiser", "adam", "O")],
    "ptb": [*LANGUAGE, *PTB], "wikitext-2": [*LANGUAGE, *WIKITEXT],
    "imdb": [*SENTIMENT, *IMDB, ("plain", "epochs", 30, "P app. 5: 15,000 steps")], "elec": [*SENTIMENT, *ELEC, ("plain", "epochs", 20, "P app. 5: 10,000 steps")], "imdb-words": [*READER, *IMDB], "elec-words": [*READER, *ELEC],
}  # fmt: skip
PINNED = [(name, *row) for name, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize(("name", "method", "setting", "value", "source"), PINNED)
def test_the_paper_scale_is_its_source(name: str, method: str, setting: str, value: object, source: str) -> None:
    assert task(name).setting(method, "paper")[setting] == value, source


COMPLETE = [
    *(
        "smnist",
        "pmnist",
        "ptb",
        "wikitext-2",
        "ptb-tuned",
        "wikitext-2-tuned",
        "imdb",
        "elec",
        "imdb-words",
        "elec-words",
    ),
    *(entry.name for entry in (*glue.TASKS, *translation.TASKS)),
]


@pytest.mark.parametrize("name", COMPLETE)
def test_no_number_of_a_paper_scale_is_without_a_source(name: str) -> None:
    entry, pinned = task(name), {row[:2] for row in TABLES[name]}
    wanted = {("plain", setting) for setting in entry.scales["paper"]}
    for method in entry.methods:
        wanted |= {(method.name, setting) for setting in (*method.settings, *method.scales.get("paper", {}))}
    assert not wanted - pinned


REPORTED = {
    "add-smnist": {"plain": 1.018, "variational_dropout": 0.721, "fraternal_dropout": 0.720, "adversarial_dropout": 0.705, "adversarial_dropout_k2": 0.644},
    "add-language-model": {"plain": 58.3, "fraternal_dropout": 56.8, "adversarial_dropout": 56.4},
    "add-sentiment": {"plain": 7.164, "vat": 5.914, "adversarial_dropout": 6.155, "adversarial_dropout_vat": 5.715},
    "salt-translation": {"plain": 34.7, "smart": 35.5, "salt": 36.8},
}  # fmt: skip


@pytest.mark.parametrize("name", list(REPORTED))
def test_what_a_study_expects_is_what_its_table_reports(name: str) -> None:
    """P tables 1 to 3 (test error, test perplexity), Z table 2; half of it decides when a claim counts as refuted."""
    study = studies()[name]
    for expect in study.expects:
        if expect.effect is not None:
            gain = study.gain(before=REPORTED[name][expect.than], after=REPORTED[name][expect.arm])
            assert expect.effect == pytest.approx(gain, abs=1e-9), expect


def test_updates_of_the_text_tasks() -> None:
    for name, updates in (("imdb", 15_000), ("elec", 10_000)):  # P app. 5
        setting = task(name).setting("plain", "paper")
        assert setting["epochs"] * setting["epoch_batches"] == updates
    words = task("imdb-words").setting("plain", "paper")
    read = 75_000 - words["held"]  # reviews, of 270.7 words each (mean of 3,000 of them)
    steps = words["epochs"] * read * 270.7 / (words["batch"] * words["window"])
    assert steps == pytest.approx(100_000, rel=0.005)


def test_the_permutation_of_pmnist_is_the_released_one() -> None:
    np.random.seed(10)
    assert order(784).tolist() == np.random.permutation(784).tolist()


def test_initial_weights_of_the_released_code() -> None:
    model = SequenceClassifier(1, 100, 10, "released")
    recurrent = model.lstm.weight_hh_l0.detach()
    assert torch.allclose(
        recurrent.t() @ recurrent, torch.eye(100), atol=1e-5
    )  # one matrix (H, 4H) with orthonormal rows
    assert float(model.lstm.weight_ih_l0.detach().norm()) == pytest.approx(1.0, abs=1e-5)
    head = model.classifier.weight.detach()
    assert torch.allclose(head @ head.t(), torch.eye(10), atol=1e-5)
    assert torch.equal(model.lstm.bias_ih_l0.detach()[100:200], torch.ones(100))


def test_options_of_the_released_code() -> None:
    entry = task("sequential-digits")
    data = entry.load(entry.setting("plain"))
    released = {"adversarial_dropout": {"penalty": "reverse_kl"}, "variational_dropout": {"masks": "active"}}
    for method, changes in released.items():
        setting = entry.setting(method, overrides=changes)
        model = entry.build(setting, data)
        objective = entry.method(method).objective(model, setting, data)
        loss = objective(*data.train.batch(slice(0, 10)))
        assert math.isfinite(float(loss.detach()))
    (term,) = objective.terms
    model.eval()
    answer = sp.metrics.perturb(model, data.train.inputs[:50], sp.Recurrent("lstm"), term.by)
    assert torch.allclose(answer.values[0].mean(1), torch.ones(50), atol=1e-5)


def test_the_released_divergence_is_kl_of_the_adversarial_prediction() -> None:
    adversarial, clean = torch.randn(4, 10), torch.randn(4, 10)
    q = adversarial.softmax(1)
    theirs = (q * adversarial.log_softmax(1)).sum(1) - (q * clean.log_softmax(1)).sum(1)  # kl_divergence_with_logit
    assert torch.allclose(sp.reverse_kl(clean, adversarial), theirs, atol=1e-5)


def test_permuted_pixels_are_read_in_that_order() -> None:
    images = torch.rand(2, 4, 4)
    setting = {"pool": 1, "step": 2, "permuted": True}
    expected = images.flatten(1)[:, order(16)].view(2, 8, 2)
    assert torch.equal(sequences(images, setting), expected)
    assert torch.equal(sequences(images, setting | {"permuted": False}), images.view(2, 8, 2))
    assert not torch.equal(expected, images.view(2, 8, 2))
