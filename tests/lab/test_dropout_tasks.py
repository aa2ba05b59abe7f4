"""The learned-dropout tasks: every method trains, useless inputs are told apart, void pixels do not count."""

import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from sparring.lab.data.camvid import VOID, Scenes
from sparring.lab.errors import LabError
from sparring.lab.runs.run import prepare
from sparring.lab.runs.shapes import figures_fault
from sparring.lab.task import Data, Split
from sparring.lab.tasks import dropouts
from sparring.lab.tasks.dropouts import images, scenes
from sparring.lab.tasks.dropouts.layers import layer_of
from sparring.lab.training.train import score, train
from sparring.nn import BernoulliDropout, keep_rates

IMAGES, USELESS, SEGMENTATION = dropouts.TASKS
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
    split = scenes.shapes(8, 16, seed=0)
    assert bool((split.targets[:, [0, -1]] == VOID).all())
    images, labels = scenes.mirrored(split.inputs, split.targets)
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
    setting = IMAGES.setting("lbd", "paper", overrides={"weights": ""})
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


def test_scenes_are_made_smaller_by_means_and_labels_by_their_middle() -> None:
    found = Scenes(
        np.arange(2 * 3 * 7 * 9, dtype=np.uint8).reshape(2, 3, 7, 9), np.zeros((2, 7, 9), np.uint8), ("a", "b")
    )
    found.labels[0, 1, 4] = 5
    split = scenes.scenes(found, 3)
    assert split.inputs.shape == (2, 3, 2, 3)
    assert split.targets.shape == (2, 2, 3)
    assert split.targets[0].tolist() == [[0, 5, 0], [0, 0, 0]]
    square = found.images[1, 2, 3:6, 6:9].astype(float) / 127.5 - 1
    assert float(split.inputs[1, 2, 1, 2]) == pytest.approx(square.mean(), abs=1e-6)
    assert torch.equal(scenes.scenes(found, 1).targets, torch.from_numpy(found.labels).long())


def test_the_papers_numbers() -> None:
    """Section 3.2.1 and 3.2.2 of Boluki et al. 2020."""
    vision, road = (entry.setting("lbd", "paper").values for entry in (IMAGES, SEGMENTATION))
    vgg = {
        "plan": "vgg19",
        "size": 224,
        "batch": 64,
        "epochs": 300,
        "optimiser": "adam",
        "lr": 1e-5,
        "samples": 10,
        "files": 5,
    }
    assert {key: vision[key] for key in vgg} == vgg
    assert vision["weights"]
    densenet = {
        "blocks": 5, "deep": True, "first": 48, "growth": 16, "middle": 15, "batch": 1, "epochs": 700, "optimiser": "rmsprop",
        "smoothing": 0.995, "lr": 1e-4, "window": 2, "stride": 1, "shrink": 1, "granularity": "layer", "samples": 10,
        "statistics": "image",
    }  # fmt: skip
    assert {key: road[key] for key in densenet} == densenet
    assert (vision["drop"], road["drop"]) == (0.5, 0.2)  # the hand-tuned rates


def test_images_stay_bytes_until_their_batch_is_cut() -> None:
    data = IMAGES.load(IMAGES.setting("lbd", "tiny", overrides={"size": 32}))
    assert data.train.inputs.dtype == torch.uint8
    images, _ = data.train.batch(slice(0, 3))
    assert images.shape == (3, 1, 32, 32)
    assert images.dtype == torch.float32
    assert images.min() >= -1
    assert images.max() <= 1


@pytest.mark.parametrize("granularity", ["unit", "layer"])
@pytest.mark.parametrize("kind", ["fixed", "bernoulli", "concrete", "gaussian"])
def test_rivals_have_masks_of_mean_one_and_as_many_rates(kind: str, granularity: str) -> None:
    setting = IMAGES.setting("lbd", "tiny", overrides={"granularity": granularity, "drop": 0.4})
    layer = layer_of(kind, 6, setting).train()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Bernoulli rates without their estimator
        means = torch.stack([layer(torch.ones(500, 6)).detach().mean(0) for _ in range(20)]).mean(0)
    torch.testing.assert_close(means, torch.ones(6), atol=0.05, rtol=0)
    torch.testing.assert_close(layer.eval()(torch.ones(1, 6)).detach(), torch.ones(1, 6))
    rates = [parameter.numel() for parameter in layer.parameters()]
    assert rates == ([] if kind == "fixed" else [6 if granularity == "unit" else 1])


def test_weights_of_imagenet_come_from_a_file(tmp_path: Path) -> None:
    changes = {"weights": "pretrained/vgg.pth"}
    plain = IMAGES.setting("regular", "tiny")
    data = IMAGES.load(plain)
    source = IMAGES.build(plain, data)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.fill_(0.25)
    (tmp_path / "pretrained").mkdir()
    torch.save(source.state_dict(), tmp_path / "pretrained" / "vgg.pth")
    for method in ("regular", "lbd", "lbd-tied", "gaussian"):
        model = IMAGES.build(IMAGES.setting(method, "tiny", data=tmp_path, overrides=changes), data)
        assert (model.features[0].weight == 0.25).all()
        assert (model.classifier[3].weight == 0.25).all()
        assert not (model.classifier[6].weight == 0.25).any()  # ten classes of its own
    state = source.state_dict()
    state["features.0.weight"] = torch.zeros(2, 2)
    torch.save(state, tmp_path / "pretrained" / "vgg.pth")
    with pytest.raises(LabError, match=r"features.0.weight needs \(8, 1, 3, 3\), the file has \(2, 2\)"):
        IMAGES.build(IMAGES.setting("lbd", "tiny", data=tmp_path, overrides=changes), data)
    (tmp_path / "pretrained" / "vgg.pth").write_bytes(b"no weights at all")
    with pytest.raises(LabError, match="is not a file of tensors"):
        IMAGES.build(IMAGES.setting("lbd", "tiny", data=tmp_path, overrides=changes), data)


def test_thresholds_come_from_the_validation_split() -> None:
    setting = IMAGES.setting("regular", "tiny")
    data = IMAGES.load(setting)
    torch.manual_seed(0)
    model = IMAGES.build(setting, data).eval()
    p = images.probabilities(model, data.validation, setting).double()
    entropy = -(p * p.log()).sum(1)
    grid = images.thresholds(model, data.test, setting, torch.tensor([0.0, 100.0]))
    torch.testing.assert_close(grid[[0, -1]], torch.stack([entropy.min(), entropy.max()]))


def test_segmentation_is_drawn_with_its_uncertainty() -> None:
    setting = SEGMENTATION.setting("lbd", "tiny", overrides={"size": 16, "samples": 2})
    data = SEGMENTATION.load(setting)
    model = SEGMENTATION.build(setting, data).eval()
    drawn = SEGMENTATION.figures(model, data, setting)
    titles = [figure["title"] for figure in drawn]
    assert titles[0] == "PAvgPU over patches"
    assert sum(title.startswith("Learned keep rates") for title in titles) == setting["middle"]
    shown = [figure for figure in drawn if figure["kind"] == "pictures"]
    assert [figure["title"] for figure in shown] == ["Image 1", "Image 2"]
    assert figures_fault(drawn) is None
    images, labels = data.test.batch(slice(0, 2))
    for number, figure in enumerate(shown):
        image, truth, guess, entropy = (torch.tensor(panel["rows"]) for panel in figure["panels"])
        red = ((images[number, 0] + 1) * 127.5).round().clamp(0, 255).long()
        assert torch.equal(image >> 16, red)
        assert torch.equal(truth, labels[number].where(labels[number] != VOID, -1))
        assert set(guess.unique().tolist()) <= {0, 1, 2}
        assert entropy.shape == (16, 16)
        assert 0 <= entropy.min() < entropy.max() <= math.log(3) + 1e-6
        assert figure["darkest"] == pytest.approx(math.log(3))


def test_an_image_normalised_by_itself_does_not_depend_on_what_was_seen_before() -> None:
    """FC-DenseNet's released test.py has batch_norm_use_averages=False; running means of single images leap about."""
    setting = SEGMENTATION.setting("regular", "tiny", overrides={"size": 16, "batch": 1, "statistics": "image"})
    data = SEGMENTATION.load(setting)
    model = SEGMENTATION.build(setting, data)
    (one, other) = data.test.inputs[:1], data.test.inputs[1:2]
    before = model.eval()(one)
    model.train()(100 * other)
    assert torch.equal(model.eval()(one), before)
    with pytest.raises(LabError, match="statistics"):
        SEGMENTATION.build(SEGMENTATION.setting("regular", "tiny", overrides={"statistics": "mean"}), data)


def test_the_kl_of_segmentation_reaches_every_rate() -> None:
    setting = SEGMENTATION.setting("lbd", "tiny", overrides={"size": 16, "batch": 1})
    data = SEGMENTATION.load(setting)
    model = SEGMENTATION.build(setting, data)
    objective = SEGMENTATION.method("lbd").objective(model, setting, data)
    for loss in objective.steps(*data.train.batch(slice(0, 1))):
        loss.backward()
    assert objective.diagnostics["dropout_kl/penalty"] != 0
    layers = [m for m in model.modules() if isinstance(m, BernoulliDropout)]
    assert len(layers) == setting["middle"]
    assert all(layer.logits.grad.abs().sum() > 0 for layer in layers)


@pytest.mark.long
def test_the_papers_networks_take_a_step() -> None:
    for entry, size in ((IMAGES, 224), (SEGMENTATION, 96)):
        setting = entry.setting("lbd", "paper", overrides={"weights": ""} if entry is IMAGES else {})
        shape = (1, 3, size, size)
        targets = torch.zeros(1, dtype=torch.long) if entry is IMAGES else torch.zeros(1, size, size, dtype=torch.long)
        data = Data(Split(torch.rand(shape), targets), Split(torch.rand(shape), targets), extra={"channels": 3})
        model = entry.build(setting, data)
        for loss in entry.method("lbd").objective(model, setting, data).steps(*data.train.batch(slice(0, 1))):
            loss.backward()
            assert torch.isfinite(loss.detach())
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
