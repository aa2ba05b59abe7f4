"""Probing: frozen features, linear probes over ten seeds, violins in the report."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from sparring.lab.cli.main import main
from sparring.lab.errors import LabError
from sparring.lab.probing import Probe, features, probe_run
from sparring.lab.registry import task
from sparring.lab.report.build import build
from sparring.lab.runs.folder import folder_of
from sparring.lab.runs.run import execute
from sparring.lab.task import Data, Setting, Split
from sparring.lab.tasks.glue.scores import Parts

SHORT = {"epochs": 1, "examples": 96}


def test_features_are_what_enters_the_head_and_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2)).train()
    x = torch.randn(7, 4)
    found = features(model, Split(x), size=3)
    assert torch.allclose(found, model[0](x).relu())
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(LabError, match="last linear layer over one row an example"):
        features(nn.Linear(4, 2), Split(torch.randn(2, 5, 4)))
    with pytest.raises(LabError, match="last linear layer over one row an example"):
        features(nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 2)), Split(torch.randn(2, 5, 4)))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_answers_as_scikit_learn_does(classes: int) -> None:
    x, y = torch.randn(60, 4), torch.randint(classes, (60,))
    probe = Probe(x, y)
    scaled = ((x - x.mean(0)) / x.std(0)).numpy()
    other = LogisticRegression(max_iter=2000).fit(scaled, y.numpy())
    assert np.allclose(probe(x).softmax(1).numpy(), other.predict_proba(scaled), atol=1e-3)


def test_classes_that_are_not_numbered_from_zero_are_refused() -> None:
    with pytest.raises(LabError, match=r"the classes here are \[0, 2, 3\]"):
        Probe(torch.randn(30, 4), torch.tensor([0, 2, 3]).repeat(10))


def test_a_probe_of_scores_is_linear_regression() -> None:
    x = torch.randn(300, 3)
    probe = Probe(x, x @ torch.tensor([1.0, -2.0, 0.5]) + 3)
    assert torch.allclose(probe(x)[:, 0], x @ torch.tensor([1.0, -2.0, 0.5]) + 3, atol=0.05)


def test_runs_are_probed_and_drawn_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("plain", "vat"):
        setting = task("sst-2").setting(method, overrides=SHORT)
        folder = folder_of(tmp_path, setting)
        execute(setting, folder)
        assert main(["evaluate", str(folder), "--probe", "sst-2"]) == 0
    assert "ten linear probes on sst-2" in " ".join(capsys.readouterr().out.split())
    found = probe_run(folder, "sst-2")
    assert len(found["accuracy"]) == 10
    assert len(set(found["accuracy"])) > 1, "seeds draw different examples"
    assert np.mean(found["accuracy"]) > 65, "the adjective decides, and the features hold it"
    page = build(tmp_path, tmp_path / "report.html").read_text()
    assert "Probe: sst-2" in page
    assert page.count("<polygon") == 2
    with pytest.raises(LabError, match="knows only its own words; probe sst-2"):
        probe_run(folder, "rte")


def test_what_a_probe_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task's words have other numbers: an encoder that only *may* be pretrained does not read them."""
    execute(task("sst").setting("plain", overrides={"epochs": 1}), tmp_path / "attention")
    with pytest.raises(LabError, match="encoder=lstm knows only its own words; probe sst"):
        probe_run(tmp_path / "attention", "imdb-attention")
    with pytest.raises(LabError, match="sst cannot score a linear probe"):
        probe_run(tmp_path / "attention", "sst")
    monkeypatch.setattr("sparring.lab.tasks.encoders.minilm_folder", lambda: None)
    with pytest.warns(UserWarning, match="encoder=auto trains a small encoder from scratch, since MiniLM is not here"):
        execute(task("sst-2").setting("plain", overrides={**SHORT, "encoder": "auto"}), tmp_path / "auto")
    with (
        pytest.warns(UserWarning, match="encoder=auto trains a small encoder from scratch"),
        pytest.raises(LabError, match="encoder=auto knows only its own words; probe sst-2"),
    ):
        probe_run(tmp_path / "auto", "cola")


def test_a_probe_that_never_saw_a_class_is_refused(tmp_path: Path) -> None:
    """Its rows would be counted as other classes."""
    execute(task("snli").setting("plain", overrides=SHORT), tmp_path)
    assert len(probe_run(tmp_path, "snli", examples=40)["accuracy"]) == 10
    with pytest.raises(LabError, match="2 examples of snli do not show all of its classes"):
        probe_run(tmp_path, "snli", examples=2)


def test_the_report_shows_training_and_validation_loss_in_one_picture(tmp_path: Path) -> None:
    for method in ("plain", "salt"):
        setting = task("rte").setting(method, overrides={**SHORT, "epochs": 2})
        execute(setting, folder_of(tmp_path, setting))
    page = build(tmp_path, tmp_path / "report.html").read_text()
    assert "Training and validation loss" in page
    assert "salt (dashed: validation)" in page
    assert "Reliability at a fitted temperature" in page
    assert "fitted on validation" in page


def test_dots_of_a_sweep_carry_their_interval() -> None:
    from sparring.lab.report.svg import scatter

    drawing = scatter(([1.0, 1.0, 1.0, 2.0], [3.0, 4.0, 5.0, 4.0]), "radius", "score")
    assert drawing.count("95 % interval at 1: 1.516 to 6.484") == 1 or "95 % interval at 1: 1.52 to 6.48" in drawing
    assert "interval at 2" not in drawing


def test_what_is_scored_beside_a_test_set_does_not_count_in_a_probe_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANLI's test sets stand behind its development sets: a probe's accuracy is that of the latter alone."""
    execute(task("snli").setting("plain", overrides=SHORT), tmp_path)
    alone = probe_run(tmp_path, "snli", examples=60)
    entry = task("snli")

    def load(setting: Setting) -> Data:
        data = entry.load(setting)
        assert isinstance(data.test, Parts)
        count = len(data.test)
        twice = {name: torch.cat([tensor, tensor]) for name, tensor in data.test.inputs.items()}
        targets = torch.cat([data.test.targets, (data.test.targets + 1) % 3])  # all wrong where the others are right
        sizes = {"R1": count, "R1 test": count}
        return replace(data, test=Parts(twice, targets, data.test.collate, None, sizes, beside=count))

    monkeypatch.setattr("sparring.lab.probing.find", lambda name: replace(entry, load=load))
    both = probe_run(tmp_path, "snli", examples=60)
    assert both["accuracy"] == both["accuracy R1"] == alone["accuracy"]
    assert max(both["accuracy R1 test"]) < min(alone["accuracy"])
