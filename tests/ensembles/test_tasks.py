"""The ensemble tasks of the lab: every method takes a step, figures mean what they say, the real data fit."""

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")

from sparring.ensembles import PriorityDiversifiedDropout
from sparring.lab.data import DataError
from sparring.lab.data.tinyimagenet import tiny_imagenet
from sparring.lab.registry import task
from sparring.lab.runs.run import execute
from sparring.lab.tasks.ensembles.data import Attacked, shifted
from sparring.lab.tasks.ensembles.figures import swept
from sparring.lab.tasks.ensembles.measures import under_attack
from sparring.lab.tasks.ensembles.methods import METHODS, euclidean, pixels
from sparring.lab.tasks.ensembles.task import ATTACKER, NOTHING, SUMMARIES

SHARED = Path(os.environ.get("SPARRING_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def digits():
    chosen = task("digits-ensemble")
    return chosen, chosen.load(chosen.setting("plain"))


@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_every_method_takes_a_step_that_reaches_every_member(method, digits):
    chosen, data = digits
    setting = chosen.setting(method, "tiny", overrides={"width": 16})
    torch.manual_seed(0)
    model = chosen.build(setting, data).train()
    objective = chosen.method(method).objective(model, setting, data)
    for loss in objective.steps(*data.train.batch(slice(0, 8))):
        loss.backward()
    norms = torch.stack([sum(p.grad.square().sum() for p in member.parameters()) for member in model.members])
    assert torch.isfinite(norms).all()
    assert (norms > 0).all()


def test_methods_start_from_the_same_networks(digits):
    chosen, data = digits
    models = []
    for method in ("plain", "lpd", "pdd-deg"):
        torch.manual_seed(0)
        models.append(chosen.build(chosen.setting(method), data))
    first = dict(models[0].named_parameters())
    for model in models[1:]:
        assert all(torch.equal(first[name], value) for name, value in model.named_parameters())


def test_attacks_only_lower_accuracy_and_only_the_test_split_is_attacked(digits):
    chosen, data = digits
    setting = chosen.setting("plain", "tiny", overrides={"width": 16, "attacked": 12, "margin_steps": 3})
    torch.manual_seed(0)
    model = chosen.build(setting, data).eval()
    with torch.no_grad():
        few = Attacked(data.test.inputs[:12], data.test.targets[:12])
        found = chosen.evaluate(model, few, setting)
        assert set(chosen.evaluate(model, data.validation, setting)) == {"accuracy", "ece", "ambiguity"}
        again = under_attack(model, few, setting)
    assert {name: found[name] for name in ("fgsm", "bim", "similarity_50")} == {
        name: again[name] for name in ("fgsm", "bim", "similarity_50")
    }
    for attack in ("fgsm", "bim", "pgd", "margin"):
        assert found[attack] <= found["accuracy"]
    assert found["smoothness_25"] <= found["smoothness_50"] <= found["smoothness_75"]


def test_shifted_images_are_windows_of_the_padded_one():
    torch.manual_seed(0)
    images = torch.rand(12, 2, 6, 7)
    moved, targets = shifted(images, torch.arange(12))
    assert torch.equal(targets, torch.arange(12))
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for before, after in zip(padded, moved):
        windows = [before[:, top : top + 6, left : left + 7] for top in range(9) for left in range(9)]
        straight = any(torch.equal(after, window) for window in windows)
        turned = any(torch.equal(after, window.flip(2)) for window in windows)
        assert straight or turned
        mirrored += turned and not straight
    assert 0 < mirrored < 12


def test_cifar_splits_do_not_overlap():
    if not (SHARED / "cifar10").is_dir():
        pytest.skip(f"no CIFAR-10 under {SHARED}; set SPARRING_DATA to a folder that holds cifar10/")
    chosen = task("cifar10-ensemble")
    data = chosen.load(chosen.setting("plain", "small", data=SHARED))
    assert (len(data.train), len(data.validation), len(data.test)) == (9000, 1000, 1000)
    assert data.train.inputs.shape[1:] == (3, 32, 32)
    inputs, _ = data.train.batch(slice(0, 64))
    assert 0 <= inputs.min() < inputs.max() <= 1
    assert data.train.inputs.dtype == torch.uint8
    counts = torch.bincount(torch.cat([data.train.targets, data.validation.targets]), minlength=10)
    assert counts.tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]


@pytest.mark.long
def test_the_whole_table_of_attacks_on_few_images(digits):
    """JSMA, C&W, AutoAttack and the audit join the gradient attacks; none of them raises accuracy."""
    pytest.importorskip("art")
    pytest.importorskip("pyautoattack")
    chosen, data = digits
    counts = {"attacked": 6, "saliency": 2, "autoattack": 2, "audited": 4, "margin_steps": 3}
    setting = chosen.setting("plain", "tiny", overrides={"width": 16, **counts})
    torch.manual_seed(0)
    model = chosen.build(setting, data).eval()
    split = Attacked(data.test.inputs[:6], data.test.targets[:6])
    with torch.no_grad():  # as the lab calls it
        found = under_attack(model, split, setting)
    white = {f"{name}{more}" for name in ("fgsm", "bim", "pgd", "paper_pgd", "margin") for more in ("", " x2")}
    assert white | {"jsma .05", "jsma .10", "cw", "autoattack", "worst-case accuracy", "masked", "clean"} <= set(found)
    assert all(found[name] <= found["clean"] for name in (*white, "worst-case accuracy"))
    assert found["masked"] in (0.0, 100.0)


def test_the_audit_flags_a_plain_ensemble_with_scaled_logits():
    chosen = task("digits-ensemble")
    setting = chosen.setting("plain", "tiny", overrides={**NOTHING, "epochs": 5})
    from sparring.lab.runs.run import prepare
    from sparring.lab.training.train import train

    session = prepare(setting)
    train(session)
    model, split = session.model.eval(), session.data.test
    judged = chosen.setting("plain", "tiny", overrides={**NOTHING, "audited": 30})
    honest = under_attack(model, split, judged)
    with torch.no_grad():
        for member in model.members:
            member.head.weight.mul_(1000)
            member.head.bias.mul_(1000)
    assert under_attack(model, split, judged)["masked"] == 100.0
    assert honest["masked"] == 0.0


@pytest.mark.long
def test_surrogates_are_trained_once_and_shared(tmp_path):
    """Table 5 in one run: the attacker's two ensembles lie beside the run; a second seed trains nothing anew."""
    chosen = task("digits-ensemble")
    small = {**NOTHING, "epochs": 1, "width": 16, "black_box": 4}
    results = []
    for seed in (0, 1):
        setting = chosen.setting("lpd", "tiny", seed, overrides=small)
        from sparring.lab.runs.folder import folder_of

        results.append(execute(setting, folder_of(tmp_path, setting)))
    crafted = {"I": ("pgd", "pgd x2", "jsma .05", "jsma .10"), "II": ("pgd", "pgd x0.5", "jsma .05", "jsma .10")}
    assert {f"type {kind} {name}" for kind, names in crafted.items() for name in names} <= set(results[0]["test"])
    wanted = chosen.helpers(setting)
    assert [helper.seed for helper in wanted.values()] == [ATTACKER, ATTACKER]
    assert wanted["I"].method == "plain"
    assert wanted["I"]["architecture"] != setting["architecture"]
    assert wanted["II"].method == "lpd"
    finished = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("result.json"))
    assert len(finished) == 4  # two runs, two surrogates
    assert not chosen.helpers(wanted["II"])


def test_five_members_have_twenty_intervals(digits):
    chosen, data = digits
    for members, intervals in ((3, 10), (5, 20)):
        model = chosen.build(chosen.setting("pdd", "tiny", overrides={"members": members, "width": 16}), data)
        (dropout,) = (m for m in model.modules() if isinstance(m, PriorityDiversifiedDropout))
        assert (len(model.members), dropout.intervals) == (members, intervals)


def test_radii_grow_until_nothing_stays_right(digits):
    chosen, data = digits
    torch.manual_seed(0)
    model = chosen.build(chosen.setting("plain", "tiny", overrides={"width": 16}), data).eval()
    inputs = data.test.inputs[:5]
    targets = model(inputs).logits.argmax(-1)
    for ball, largest in ((pixels, 1.0), (euclidean, 8.0)):
        figure = swept(model, inputs, targets, ball, 0.02, largest, "norm")
        assert figure["x"][:3] == [0.0, 0.02, 0.04]
        assert figure["series"]["margin"][0] == 100
        assert figure["series"]["margin"][-1] == 0 or figure["x"][-1] == largest


@pytest.mark.parametrize("name", list(SUMMARIES))
def test_every_task_builds_its_networks_and_the_papers_settings_are_pinned(name):
    chosen = task(name)
    setting = chosen.setting("lpd", "tiny")
    data = chosen.load(setting)
    torch.manual_seed(0)
    out = chosen.build(setting, data)(data.train.batch(slice(0, 2))[0])
    assert out.members.shape == (2, 3, 10)
    if "paper" in chosen.scales:
        values = chosen.setting("lpd", "paper").values
        # Section 5: K = 3 ResNet-18 (512 features); predecessor's code: SGD .02, cosine to 1e-4, batches of 64, 150 epochs.
        pinned = {
            "members": 3, "architecture": "resnet", "width": 64, "optimiser": "sgd", "lr": 0.02, "momentum": 0.9,
            "weight_decay": 5e-4, "schedule": "cosine", "lr_end": 1e-4, "batch": 64, "epochs": 150, "radius": 0.02,
            "examples": 0, "test_examples": 0, "certified_radius": 0.0005,
        }  # fmt: skip
        assert {key: values[key] for key in pinned} == pinned


@pytest.mark.long
@pytest.mark.parametrize("name", ["cifar10-ensemble", "cifar100-ensemble", "tiny-imagenet-ensemble"])
def test_the_papers_networks_take_a_step(name):
    chosen = task(name)
    setting = chosen.setting("at-lpd", "paper")
    data = chosen.load(chosen.setting("at-lpd", "tiny"))
    model = chosen.build(setting, data)
    assert model.members[0].head.in_features == 512
    for loss in chosen.method("at-lpd").objective(model, setting, data).steps(*data.train.batch(slice(0, 2))):
        loss.backward()


def write_image(path, colour=0):
    image = pytest.importorskip("PIL.Image", reason="the lab extra is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", (64, 64), (colour, 0, 0)).save(path, "JPEG")


@pytest.fixture
def tiny_folder(tmp_path):
    base = tmp_path / "tiny-imagenet" / "tiny-imagenet-200"
    for number, wnid in enumerate(("n01", "n02")):
        for k in range(3):
            write_image(base / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", 100 * number)
            write_image(base / "val" / "images" / f"val_{number}_{k}.JPEG", 100 * number)
    lines = [f"val_{n}_{k}.JPEG\tn0{n + 1}\t0\t0\t63\t63\n" for n in range(2) for k in range(3)]
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    (base / "wnids.txt").write_text("n02\nn01\n")
    return tmp_path


def test_tiny_imagenet_in_its_published_folders(tiny_folder):
    train, val = tiny_imagenet("train", tiny_folder, each=2), tiny_imagenet("val", tiny_folder)
    assert (train.images.shape, val.images.shape) == ((4, 3, 64, 64), (6, 3, 64, 64))
    assert train.classes == ("n02", "n01")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert [int(image[0].mean()) > 50 for image in train.images] == [True, True, False, False]
    assert [int(image[0].mean()) > 50 for image in val.images] == [True] * 3 + [False] * 3


def test_tiny_imagenet_says_what_is_wrong(tiny_folder):
    base = tiny_folder / "tiny-imagenet" / "tiny-imagenet-200"
    broken = base / "train" / "n01" / "images" / "n01_0.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"n01_0.JPEG.*not a whole jpeg"):
        tiny_imagenet("train", tiny_folder)
    broken.write_bytes(whole)
    (base / "wnids.txt").write_text("n02\n")
    with pytest.raises(DataError, match=r"n01 is not in wnids.txt"):
        tiny_imagenet("train", tiny_folder)
    (base / "wnids.txt").write_text("n01\nn02\nn03\n")
    with pytest.raises(DataError, match="no image of class n03"):
        tiny_imagenet("train", tiny_folder)
    with pytest.raises(DataError, match="use 'train' or 'val'"):
        tiny_imagenet("test", tiny_folder)
