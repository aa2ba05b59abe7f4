"""Every task at `tiny` with every method it lists; what each must deliver."""

from pathlib import Path

import pytest
import torch

from sparring.lab.errors import LabError
from sparring.lab.registry import task, tasks
from sparring.lab.report.panels import draw
from sparring.lab.report.svg import lines
from sparring.lab.runs.folder import read_figures, read_metrics
from sparring.lab.runs.run import execute
from sparring.lab.task import Split, Task, like, rows, take

# Still `tiny`, but one short epoch: what is tested is that everything fits together.
SHORTER = {
    "epochs": 1, "attacked": 3, "swept": 3, "margin_steps": 3, "questions": 65, "examples": 96, "estimates": 3,
    "samples": 2, "test_examples": 40, "removed": 1, "correlated": 20, "scored": 20,
}  # fmt: skip
IMAGES = {
    "digits-ensemble",
    "sequential-digits",
    "dropout-images",
    "dropout-segmentation",
}  # batches need no sorting by length


# Tasks of one family, which share how they are scored and their methods, run them all once and the baseline everywhere.
def family(entry: Task) -> tuple[object, ...]:
    return entry.evaluate, *(method.name for method in entry.methods)


FIRST = {family(entry): entry.name for entry in reversed(tasks().values())}
PAIRS = [
    (entry.name, method.name)
    for entry in tasks().values()
    for method in entry.methods
    if entry.name == FIRST[family(entry)] or method.name == entry.baseline
]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_method_of_every_task_runs_at_tiny(tmp_path: Path, name: str, method: str) -> None:
    entry = task(name)
    known = entry.setting(method).values
    fixed = {"batch", *entry.method(method).settings}
    changes = {k: min(v, known[k]) for k, v in SHORTER.items() if known.get(k) and k not in fixed}
    if name in IMAGES:
        changes["epoch_batches"] = 3
    result = execute(entry.setting(method, overrides=changes), tmp_path)
    assert result["score"] in result["test"]
    assert all(isinstance(value, float) for value in result["test"].values())
    trained = entry.method(method).objective is not None
    assert len(read_metrics(tmp_path)) == (1 if trained and known["epochs"] else 0)
    assert (result["passes_per_step"] >= 2) == bool(trained and known["epochs"])


def test_the_tasks_of_the_papers_are_there() -> None:
    wanted = {
        "sequential-digits", "smnist", "pmnist", "dropout-toy", "dropout-images", "movielens", "babi-1", "babi-2", "babi-3",
        "sst", "imdb-attention", "20news", "ag-news", "cnn-qa", "snli-attention", "multinli-attention", "rte", "cola", "sts-b", "digits-ensemble", "cifar10-ensemble",
    }  # fmt: skip
    assert wanted <= set(tasks())
    fine_tuning = {method.name for method in task("rte").methods}
    assert fine_tuning >= {"salt", "smart", "vat", "adversarial_training", "free_lb", "free_at", "r_drop"}


def test_figures_of_every_kind_can_be_drawn(tmp_path: Path) -> None:

    execute(task("sequential-digits").setting("plain", overrides={"epochs": 1}), tmp_path)
    figures = read_figures(tmp_path) + read_metrics(tmp_path)[0]["probe"]
    assert {figure["kind"] for figure in figures} == {"reliability", "histogram", "heatmap"}
    for figure in figures:
        assert "<svg" in draw("plain", figure, {"plain": 0})["drawing"]
    assert "nan" not in lines({"a": ([1.0, 2.0], [1.0, 1.0])}, "x", "y", {"a": 1})


def test_adversarial_subnetworks_are_worse_than_random_ones(tmp_path: Path) -> None:

    execute(task("sequential-digits").setting("plain"), tmp_path)
    (figure,) = [f for f in read_figures(tmp_path) if f["kind"] == "histogram"]
    means = {name: sum(values) / len(values) for name, values in figure["series"].items()}
    assert means["adversarial"] < means["random"]


def test_learned_rates_reach_the_exact_optimum(tmp_path: Path) -> None:
    """Unbiased estimators end where the true gradient ends; the score is an exact sum over masks."""
    found = {
        name: execute(task("dropout-toy").setting(name), tmp_path / name)["test"]["expected loss"]
        for name in ("exact", "arm", "disarm")
    }
    assert found["arm"] == pytest.approx(found["exact"], rel=0.05)
    assert found["disarm"] == pytest.approx(found["exact"], rel=0.05)


def test_the_toys_expected_loss_is_the_mean_over_sampled_masks() -> None:
    from sparring.lab.tasks.toy import expected_loss

    entry = task("dropout-toy")
    setting = entry.setting("arm")
    data = entry.load(setting)
    model = entry.build(setting, data)
    keep = torch.tensor([0.3, 0.8])
    hidden = model.hidden(data.train.inputs).relu()
    masks = torch.bernoulli(keep.expand(4000, 2))
    sampled = torch.stack([(model.out(hidden * m).squeeze(-1) - data.train.targets).square().mean() for m in masks])
    error = float(sampled.std()) / 4000**0.5
    assert float(expected_loss(model, data.train, keep)) == pytest.approx(float(sampled.mean()), abs=4 * error)


def test_mnist_rows_and_permuted_pixels(data_folder: Path) -> None:
    small = task("smnist").setting("plain", "small", data=data_folder, overrides={"examples": 20, "tested": 10})
    data = task("smnist").load(small)
    assert data.train.inputs.shape == (20, 28, 28)
    paper = task("pmnist").setting("plain", "paper", data=data_folder, overrides={"examples": 20, "tested": 10})
    mixed = task("pmnist").load(paper)
    assert mixed.train.inputs.shape == (20, 784, 1)
    assert torch.equal(mixed.train.inputs.flatten(1).sort(1).values, data.train.inputs.flatten(1).sort(1).values)


def test_values_keep_their_types_and_names_are_suggested() -> None:
    entry = task("sequential-digits")
    assert entry.setting("salt", overrides={"radius": 1})["radius"] == 1.0
    with pytest.raises(LabError, match="did you mean radius"):
        entry.setting("salt", overrides={"radus": 1})
    with pytest.raises(LabError, match="whole number"):
        entry.setting("salt", overrides={"steps": 1.5})
    with pytest.raises(LabError, match="did you mean tiny"):
        entry.setting("salt", "tinny")
    with pytest.raises(LabError, match="true or false"):
        like("on", True, 3)


def test_trees_of_tensors_are_cut_along_the_examples() -> None:
    split = Split({"a": torch.arange(6).reshape(3, 2), "b": (torch.arange(3),)}, torch.arange(3))
    inputs, targets = split.batch(torch.tensor([2, 0]))
    assert inputs["a"].tolist() == [[4, 5], [0, 1]]
    assert inputs["b"][0].tolist() == targets.tolist() == [2, 0]
    assert rows(split.inputs) == 3
    assert [len(t) for _, t in split.batches(2)] == [2, 1]
    assert take(None, slice(0, 1)) is None
