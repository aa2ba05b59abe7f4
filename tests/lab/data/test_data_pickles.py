"""Pickles read without pickle: what it builds equals what pickle builds, and what it must not build it refuses."""

import builtins
import os
import pickle
import pickletools
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.lab.data import DataError
from sparring.lab.data.pickles import read_pickle

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol=protocol)
    seen = read_pickle(raw)
    assert seen == pickle.loads(raw)
    assert repr(seen) == repr(value)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.booleans(), st.sampled_from([2, 3, 4]))
def test_byte_arrays_are_read_as_pickle_reads_them(shape: list[int], fortran: bool, protocol: int) -> None:
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape), dtype=np.uint8, order="F" if fortran else "C")
    raw = pickle.dumps({"data": array}, protocol=protocol)
    assert np.array_equal(read_pickle(raw)["data"], array)


def test_the_strings_of_python_2_stay_bytes() -> None:
    assert read_pickle(b"\x80\x02}q\x01U\x01aq\x02U\x01\xffq\x03s.") == {b"a": b"\xff"}


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_hostile_pickles_are_refused_and_run_nothing(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for evil in (
        Calls(os.system, f"touch {mark}"),
        Calls(builtins.eval, f"open({str(mark)!r}, 'w')"),
        Calls(subprocess.Popen, ["touch", str(mark)]),
        Calls(getattr, "", "join"),
        {"data": Calls(os.mkdir, str(mark))},
        Path("x"),
        np.zeros(3, dtype=np.float32),
        np.array([object()], dtype=object),
        np.dtype("f4"),
        1.5,
        {1, 2},
        Calls(np.load, str(mark)),
    ):
        with pytest.raises(DataError, match="refused"):
            read_pickle(pickle.dumps(evil, protocol=protocol))
        assert not mark.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # the classic
        b"cnumpy.core.multiarray\n_reconstruct\n.",  # a bare name as the result
        b"(cnumpy\nndarray\nl.",
        b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R.",  # a dtype without an array
        b"\x80\x02ccopyreg\n_reconstructor\n.",
        b"\x80\x02P1\n.",  # persistent ids
        b"\x80\x02\x82\x01.",  # extension registry
        b"\x80\x02}(](K\x01)s.",
        b"\x80\x02" + b"(" * 50 + b".",
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",  # a huge integer
        b"\x80\x02" + b")" + b"\x85" * 200_000 + b"}h\x00s.",
        b"\x80\x02}" + b")" + b"\x85" * 500_000 + b"K\x01s.",  # a key nested half a million deep
        b"",
        b".",
        b"\x80\x02N",
    ],
)
def test_crafted_programs_are_refused(raw: bytes) -> None:
    with pytest.raises(DataError):
        read_pickle(raw)


def test_doubling_tuples_cost_no_memory() -> None:
    laughs = b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"."  # a tuple of 2^60 leaves, sixty objects
    value = read_pickle(laughs)
    assert len(value) == 2


@settings(max_examples=150)
@given(st.data())
def test_scrambled_pickles_give_a_data_error_or_plain_values(data: st.DataObject) -> None:
    whole = pickle.dumps(
        {"data": np.zeros((2, 3), np.uint8), "labels": [1, 300, 70_000], b"x": ("y", b"z")}, protocol=2
    )
    raw = bytearray(whole)
    codes = [ord(op.code) for op in pickletools.opcodes]
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(codes) | st.integers(0, 255))
    with suppress(DataError):
        read_pickle(bytes(raw[: data.draw(st.integers(1, len(raw)))]))
