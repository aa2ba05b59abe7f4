"""Building the native library: cache, races, and what happens without a compiler."""

import ctypes
import logging
import os
import shutil
import stat
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
    native._library.cache_clear()
    yield tmp_path / "cache"
    native._library.cache_clear()


def test_where_there_is_a_compiler_the_source_compiles() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler here")
    assert native.library() is not None, "the fallback must not hide a source that does not compile"


@needs_compiler
def test_compiled_once_and_taken_from_the_cache_afterwards(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build()
    assert first.parent == fresh
    assert [path.name for path in fresh.iterdir()] == [first.name]
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.build() == first


@needs_compiler
def test_another_flag_or_processor_is_another_file(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_compile", lambda compiler, target: target)
    names = {native.build().name}
    monkeypatch.setattr(native, "_processor", lambda: "another one")
    names.add(native.build().name)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    names.add(native.build().name)
    assert len(names) == 3


@needs_compiler
def test_a_read_only_cache_is_replaced_by_a_private_folder(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    built = native.build()
    assert built.parent != fresh
    assert stat.S_IMODE(os.stat(built.parent).st_mode) == 0o700
    ctypes.CDLL(str(built))


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
