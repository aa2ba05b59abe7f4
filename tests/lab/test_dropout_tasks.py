"""The learned-dropout tasks: every method trains, useless inputs are told apart, void pixels do not count."""

import os
from pathlib import Path

import pytest
import torch

from sparring.lab.data.camvid import VOID
from sparring.lab.runs.run import prepare
from sparring.lab.tasks import dropouts, segmentation
from sparring.lab.training.train import score, train
from sparring.nn import BernoulliDropout, keep_rates

IMAGES, USELESS = dropouts.TASKS
(SEGMENTATION,) = segmentation.TASKS
DATA = Path(os.environ.get("SPARRING_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.parametrize("method", [method.name for method in IMAGES.methods])
def test_every_dropout_learns_digits(method: str) -> None:
    session = prepare(IMAGES.setting(method, "tiny", overrides={"epochs": 2}))
    train(session)
    found = score(session, "test")
    assert found["accuracy"] > 40
    assert 0 < found["pavgpu"] < 100
    rates = torch.cat(list(keep_rates(session.model).values()) or [torch.ones(1)])
    start = torch.tensor(0.5)
    assert bool((rates != start).any())  # learned rates have moved; fixed ones are not there


@pytest.mark.parametrize("method", ["arm", "disarm", "concrete"])
def test_learned_rates_tell_useful_inputs_from_noise(method: str) -> None:
    session = prepare(USELESS.setting(method, "tiny", overrides={"epochs": 12}))
    train(session)
    found = score(session, "test")
    assert found["separation_auc"] > 0.85
    assert found["keep_useful"] > found["keep_useless"]


@pytest.mark.parametrize("method", [method.name for method in SEGMENTATION.methods])
def test_every_dropout_learns_shapes(method: str) -> None:
    small = {"epochs": 2, "size": 16, "samples": 0 if method == "regular" else 2}
    session = prepare(SEGMENTATION.setting(method, "tiny", overrides=small))
    before = score(session, "validation")["mean_iou"]
    train(session)
    assert score(session, "validation")["mean_iou"] > before


def test_shapes_have_a_void_rim_and_mirror_with_their_labels() -> None:
    split = segmentation.shapes(8, 16, seed=0)
    assert bool((split.targets[:, [0, -1]] == VOID).all())
    images, labels = segmentation.mirrored(split.inputs, split.targets)
    for image, label, old_image, old_label in zip(images, labels, split.inputs, split.targets):
        same = torch.equal(image, old_image) and torch.equal(label, old_label)
        assert same or (torch.equal(image, old_image.flip(-1)) and torch.equal(label, old_label.flip(-1)))


def test_tied_rates_are_one_parameter() -> None:
    setting = IMAGES.setting("lbd-tied", "tiny")
    model = IMAGES.build(setting, IMAGES.load(setting))
    layers = [m for m in model.modules() if isinstance(m, BernoulliDropout)]
    assert len(layers) == 2
    assert layers[0].logits is layers[1].logits


def test_the_papers_settings_build_the_papers_networks() -> None:
    setting = IMAGES.setting("lbd", "paper")
    tiny = IMAGES.load(IMAGES.setting("lbd", "tiny"))
    with torch.device("meta"):
        vgg = IMAGES.build(setting, tiny)
    assert vgg.get_submodule("classifier.2").logits.shape == (4096,)
    with torch.device("meta"):
        net = SEGMENTATION.build(SEGMENTATION.setting("lbd", "paper"), tiny)
    assert sum(isinstance(m, BernoulliDropout) for m in net.modules()) == 15


def test_camvid_is_read_as_the_task_wants_it() -> None:
    if not (DATA / "camvid").exists():
        pytest.skip("CamVid is not in SPARRING_DATA")
    data = SEGMENTATION.load(SEGMENTATION.setting("lbd", "small", data=DATA, overrides={"shrink": 12}))
    assert data.train.inputs.shape[1:] == (3, 30, 40)
    assert data.train.inputs.abs().max() <= 1
    assert set(data.train.targets.unique().tolist()) <= set(range(12))
