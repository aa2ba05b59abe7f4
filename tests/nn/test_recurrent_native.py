"""Building the native library: cache, races, and what happens without a compiler."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparring.nn as snn
from sparring.nn.recurrent import fused as recurrent_native
from sparring.nn.recurrent.native import build as native

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and a process that has not loaded the library yet."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    native._library.cache_clear()
    yield tmp_path / "cache"
    native._library.cache_clear()


def test_where_there_is_a_compiler_the_source_compiles() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler here")
    assert native.library() is not None, "the fallback must not hide a source that does not compile"


@needs_compiler
def test_compiled_once_and_taken_from_the_cache_afterwards(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build(fresh)
    assert first.parent == fresh
    assert [path.name for path in fresh.iterdir()] == [first.name]
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.build(fresh) == first


@needs_compiler
def test_another_flag_or_processor_is_another_file(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_compile", lambda compiler, folder, key: folder / key)
    names = {native.build(fresh).name}
    monkeypatch.setattr(native, "_processor", lambda: "another one")
    names.add(native.build(fresh).name)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    names.add(native.build(fresh).name)
    assert len(names) == 3


@needs_compiler
@pytest.mark.parametrize("why", ["read-only", "read-only and damaged", "writable by others", "of another user"])
def test_a_cache_that_cannot_be_trusted_gives_way_to_a_private_folder_that_is_gone_afterwards(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    if why == "read-only":
        real = Path.mkdir
        refused = PermissionError(13, "read-only file system")

        def mkdir(self: Path, *arguments: object, **named: object) -> None:
            if self == fresh:
                raise refused
            real(self, *arguments, **named)

        monkeypatch.setattr(Path, "mkdir", mkdir)
    elif why == "read-only and damaged":
        native.build(fresh).write_bytes(b"garbage")

        really = Path.unlink

        def unlink(self: Path, *arguments: object, **named: object) -> None:
            if self.parent == fresh:
                raise PermissionError(30, "Read-only file system")
            really(self, *arguments, **named)

        monkeypatch.setattr(Path, "unlink", unlink)
    elif why == "writable by others":
        fresh.chmod(0o777)
        planted = fresh / native.build(fresh).name
        planted.write_bytes(b"planted")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        monkeypatch.setattr(native, "ours", lambda found: False)
    monkeypatch.setattr(native.tempfile, "tempdir", str(tmp_path))
    assert native.library() is not None
    assert "is not used" in caplog.text
    assert not list(tmp_path.glob("sparring-*")), "the private folder is gone"


LOAD = """
import sys, faulthandler, logging, runpy
logging.basicConfig(level=logging.INFO)
sys.exit(runpy.run_path({file!r})["library"]() is None)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library as it lies in a cache."""
    folder = tmp_path_factory.mktemp("compiled")
    folder.chmod(0o700)
    return native.build(folder)


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "flip", "planted", "link", "mode"])
def test_a_damaged_library_is_compiled_again_and_never_loaded(
    fresh: Path, tmp_path: Path, compiled: Path, damage: str
) -> None:
    raw = compiled.read_bytes()
    built = Path(shutil.copy2(compiled, fresh))
    if damage == "mode":
        built.chmod(0o666)
    elif damage == "link":
        (tmp_path / "elsewhere.so").write_bytes(raw)
        built.unlink()
        built.symlink_to(tmp_path / "elsewhere.so")
    else:
        other = raw[:2000] + bytes([raw[2000] ^ 1]) + raw[2001:]
        spoilt = {"cut": raw[:5000], "empty": b"", "garbage": b"\0" * 5000, "flip": other, "planted": other}[damage]
        built.write_bytes(spoilt)
    code = LOAD.format(file=native.__file__)
    environment = {**os.environ, "SPARRING_CACHE": str(fresh)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is damaged or not ours; it is compiled again" in done.stderr
    assert [path.read_bytes() == raw for path in fresh.iterdir()] == [True]
    assert not next(fresh.iterdir()).is_symlink()


@needs_compiler
def test_the_compiler_may_have_arguments(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    monkeypatch.setenv("CC", f"{shutil.which('env')} EXTRA=1 {compiler} -DNOTHING")
    assert native.library() is not None


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_working_compiler_plain_pytorch_runs_and_the_log_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    x, ones = torch.randn(6, 4, 3), torch.ones(1, 4, 5)
    layer = snn.LSTM(3, 5)
    with caplog.at_level(logging.INFO, "sparring"):
        torch.testing.assert_close(layer(x, mask=ones)[0], layer(x)[0])
    assert "plain PyTorch runs instead" in caplog.text
    assert not list(fresh.glob("*.so"))


def test_the_environment_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_NATIVE", "0")
    assert not recurrent_native.usable(torch.ones(1))


def test_float64_runs_in_plain_pytorch() -> None:
    assert not recurrent_native.usable(torch.ones(1, dtype=torch.float64))


@needs_compiler
def test_processes_that_build_at_the_same_time_all_load_a_whole_library(fresh: Path) -> None:
    code = f"import runpy, sys; sys.exit(runpy.run_path({native.__file__!r})['library']() is None)"
    environment = {**os.environ, "SPARRING_CACHE": str(fresh)}
    racers = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0, 0]
    assert len(list(fresh.iterdir())) == 1
