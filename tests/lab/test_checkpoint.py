"""Checkpoints: exact, atomic, locked, and never a half-written one."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.lab.errors import RunError
from sparring.lab.runs import checkpoint, files

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False)
tensors = st.sampled_from(
    [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(3),
        torch.tensor([True]),
        torch.zeros(0),
        torch.ones(2, dtype=torch.bfloat16),
    ]
)
keys = st.text(max_size=4) | st.integers()
trees = st.recursive(
    leaves | tensors,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(trees)
def test_trees_come_back_as_they_were(tree: object) -> None:
    found: dict[str, torch.Tensor] = {}
    values = json.loads(json.dumps(checkpoint.flatten({"tree": tree}, "p", found), allow_nan=False))
    assert same(checkpoint.unflatten(values, safetensors.torch.load(safetensors.torch.save(found))), {"tree": tree})


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.AdamW(p),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.RMSprop(p),
    ],
)
def test_optimiser_state_goes_on_exactly(tmp_path: Path, make) -> None:
    def steps(model, optimiser, count):
        for n in range(count):
            model(torch.full((2, 3), float(n))).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()

    model = torch.nn.Linear(3, 2)
    optimiser = make(model.parameters())
    steps(model, optimiser, 3)
    checkpoint.save(tmp_path, {"state": {"model": dict(model.state_dict()), "optimiser": optimiser.state_dict()}})
    steps(model, optimiser, 3)
    again = torch.nn.Linear(3, 2)
    later = make(again.parameters())
    state = checkpoint.load(tmp_path)["state"]
    again.load_state_dict(state["model"])
    later.load_state_dict(state["optimiser"])
    steps(again, later, 3)
    assert torch.equal(model.weight, again.weight)
    assert torch.equal(model.bias, again.bias)


def test_two_states_stay_and_unchanged_parts_are_not_rewritten(tmp_path: Path) -> None:
    for n in range(4):
        checkpoint.save(tmp_path, {"state": {"w": torch.full((3,), float(n))}, "best": {"w": torch.ones(3)}})
        best = next(tmp_path.glob("best-*"))
        written = best.stat().st_mtime_ns if n == 0 else written  # noqa: F821
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert best.stat().st_mtime_ns == written
    assert checkpoint.load(tmp_path)["state"]["w"].tolist() == [3, 3, 3]
    assert checkpoint.read(tmp_path / "previous.json")["state"]["w"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_failing_disk_leaves_the_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    checkpoint.save(tmp_path, {"state": {"w": torch.zeros(3), "n": 1}})
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if at == "write":
            patch.setattr("builtins.open", full)
        else:
            patch.setattr(files.os, at, full)
        with pytest.raises(RunError, match="No space left"):
            checkpoint.save(tmp_path, {"state": {"w": torch.ones(3), "n": 2}})
    assert at == "replace" or sorted(p.name for p in tmp_path.iterdir()) == before
    assert not list(tmp_path.glob(".*"))
    assert checkpoint.load(tmp_path)["state"]["n"] == 1


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, as a full disk or a quota does."""
    checkpoint.save(tmp_path, {"state": {"n": 1}})
    script = f"""
import resource, signal, torch
from pathlib import Path
from sparring.lab.runs import checkpoint, files
from sparring.lab.errors import RunError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(Path({str(tmp_path)!r}), {{"state": {{"n": 2, "w": torch.zeros(200_000)}}}})
except RunError as error:
    raise SystemExit(0 if "File too large" in str(error) else str(error))
raise SystemExit("nothing was refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(tmp_path) == {"state": {"n": 1}}
    assert not list(tmp_path.glob(".*"))


def spoil(folder: Path, damage: str) -> None:
    """Damage the newest state."""
    entry = files.read_json(folder / "state.json")["parts"]["state"]
    file = folder / entry["file"]
    content = file.read_bytes()
    if damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        file.write_bytes(content[:20])
    elif damage == "gone":
        file.unlink()
    elif damage == "value":
        text = (folder / "state.json").read_text()
        (folder / "state.json").write_text(text.replace('"n": 2', '"n": 3'))
    elif damage == "elsewhere":
        files.write_json(
            folder / "state.json", {"format": 1, "parts": {"state": {**entry, "file": "../x.safetensors"}}}
        )
    else:
        (folder / "state.json").write_bytes({"json": b"{", "bytes": b"\xff\xfe", "deep": b"[" * 100_000}[damage])


DAMAGE = ["flip", "cut", "gone", "value", "elsewhere", "json", "bytes", "deep"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, {"state": {"w": torch.zeros(3), "n": 2}})
    spoil(tmp_path, damage)
    with pytest.raises(files.Damaged, match=r"damaged|is gone"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_state_before_a_damaged_one_is_used_and_kept(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.save(tmp_path, {"state": {"w": torch.zeros(3), "n": 1}})
    checkpoint.save(tmp_path, {"state": {"w": torch.ones(3), "n": 2}})
    spoil(tmp_path, damage)
    assert checkpoint.load(tmp_path)["state"]["n"] == 1
    assert "the checkpoint before it is used" in caplog.text
    assert checkpoint.load(tmp_path, mend=True)["state"]["n"] == 1
    checkpoint.save(tmp_path, {"state": {"w": torch.full((3,), 2.0), "n": 3}})
    assert [checkpoint.read(tmp_path / name)["state"]["n"] for name in ("state.json", "previous.json")] == [3, 1]


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    files.write_json(tmp_path / "state.json", {"format": 99, "parts": {}})
    with pytest.raises(RunError, match="not a checkpoint this version can read"):
        checkpoint.load(tmp_path)


def test_two_processes_cannot_hold_one_run(tmp_path: Path) -> None:
    with files.locked(tmp_path), pytest.raises(RunError, match="another process"), files.locked(tmp_path):
        pass
    with files.locked(tmp_path):
        (tmp_path / ".state.json.1.tmp").write_text("left by a killed process")
    with files.locked(tmp_path):
        assert not list(tmp_path.glob(".*.tmp"))


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"), files.locked(tmp_path / "file" / "run"):
        pass


def test_what_has_lost_its_seal_is_damaged(tmp_path: Path) -> None:
    """Bytes that are gone may take the seal along and leave JSON behind: the middle of one entry up to the end of the next."""
    files.write_json(tmp_path / "result.json", {"error": 0.5, "weights": "49b2"})
    text = (tmp_path / "result.json").read_text()
    at = text.index("b2")
    (tmp_path / "result.json").write_text(text[:at] + text[text.rindex('"') - 4 :])
    assert json.loads((tmp_path / "result.json").read_text())["error"] == 0.5
    with pytest.raises(files.Damaged, match="it has no seal"):
        files.read_json(tmp_path / "result.json", {"error": float, "weights": str})


def test_json_holds_no_infinities(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"a": math.nan, "b": [math.inf, 1.5]})
    assert files.read_json(tmp_path / "a.json") == {"a": None, "b": [None, 1.5]}


def test_things_without_a_plain_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="state/f is a"):
        checkpoint.save(tmp_path, {"state": {"f": print}})
