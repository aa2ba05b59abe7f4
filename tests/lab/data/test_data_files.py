"""The file layer: hostile archives, bombs, damage, what is found where, and what the messages say."""

import gzip
import io
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparring.lab.data as data
from data_samples import PACK, SAMPLES, archive, tar_of, write, zip_of
from sparring.lab.data import DataError, Folder, MissingData
from sparring.lab.data import streams as streams_module
from sparring.lab.data.vectors import vectors


def put(root: Path, name: str, raw: bytes) -> Folder:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(raw)
    return Folder(root)


@given(st.binary(max_size=2000), st.sampled_from([*PACK, ".tar", ".tar.gz", ".tar.xz", ".tar.bz2", ".zip"]))
def test_bytes_come_back_whatever_they_are_packed_in(raw: bytes, way: str) -> None:
    with tempfile.TemporaryDirectory() as where:
        if way in PACK:
            folder = put(Path(where), "set/part/file.bin" + way, PACK[way](raw))
        elif way == ".zip":
            folder = put(Path(where), "set/any.zip", zip_of({"part/file.bin": raw}))
        else:
            folder = put(Path(where), "set/any" + way, tar_of({"part/file.bin": raw}, way.removeprefix(".tar")))
        assert folder.read("set/part/file.bin") == raw
        assert dict(folder.walk("set/part")) == {"set/part/file.bin": raw}


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=8))
def test_lines_end_at_newlines_only(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as where:
        text = "".join(line + "\n" for line in lines)
        folder = put(Path(where), "a.txt", text.encode())
        expected = [line.removeprefix("\ufeff") if i == 0 else line for i, line in enumerate(lines)]
        assert list(folder.lines("a.txt")) == list(enumerate(expected, 1))
        put(Path(where), "a.txt", text.replace("\n", "\r\n").encode())
        assert list(folder.lines("a.txt")) == list(enumerate(expected, 1))


def test_the_plain_file_wins_over_an_archive_and_the_nearest_archive_over_a_far_one(tmp_path: Path) -> None:
    folder = put(tmp_path, "all.tar", tar_of({"set/part/x": b"far"}))
    assert folder.read("set/part/x") == b"far"
    put(tmp_path, "set/near.zip", zip_of({"part/x": b"near"}))
    assert folder.read("set/part/x") == b"near"
    put(tmp_path, "set/part/x.gz", gzip.compress(b"plain"))
    assert folder.read("set/part/x") == b"plain"
    assert dict(folder.walk("set")) == {"set/part/x": b"plain"}


def test_a_wrapped_member_of_an_archive_is_unwrapped(tmp_path: Path) -> None:
    folder = put(tmp_path, "set/a.tar", tar_of({"x.txt.xz": PACK[".xz"](b"deep")}))
    assert folder.read("set/x.txt") == b"deep"
    assert list(folder.walk("set")) == [("set/x.txt", b"deep")]


def test_an_archive_that_was_replaced_is_looked_through_again(tmp_path: Path) -> None:
    folder = put(tmp_path, "set/a.tar", tar_of({"x": b"1"}))
    assert folder.find("set/y") is None
    put(tmp_path, "set/a.tar", tar_of({"x": b"1", "y": b"2" * 600}))
    assert folder.read("set/y") == b"2" * 600


def link(kind: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("set/a.tar", tar_of({"../x": b"", "x": b""})),
        ("set/a.tar.gz", tar_of({"/etc/x": b"", "x": b""}, ".gz")),
        ("set/a.tar", tar_of({"part/../../x": b"", "x": b""})),
        ("set/a.tar", link(tarfile.SYMTYPE)),
        ("set/a.tar", link(tarfile.LNKTYPE)),
        ("set/a.tar", link(tarfile.CHRTYPE)),
        ("set/a.tar", link(tarfile.FIFOTYPE)),
        ("set/a.zip", zip_of({"../x": b"", "x": b""})),
        ("set/a.zip", zip_of({"/x": b"", "x": b""})),
        ("set/a.zip", zip_of({"C:\\x": b"", "x": b""})),
        ("set/a.zip", zip_of({"part\\..\\..\\x": b"", "x": b""})),
    ],
)
def test_members_that_leave_the_folder_are_refused(name: str, raw: bytes, tmp_path: Path) -> None:
    folder = put(tmp_path, name, raw)
    with pytest.raises(DataError, match=f"{Path(name).name}: refused, because member .* (leaves its folder|is a link)"):
        folder.read("set/x")
    with pytest.raises(DataError, match="refused"):
        list(folder.walk("set"))


@pytest.mark.parametrize("name", ["set/a.zip", "set/a.tar"])
@pytest.mark.parametrize("member", ["", ".//.", "././"])
def test_a_member_without_a_name_is_refused(name: str, member: str, tmp_path: Path) -> None:
    raw = zip_of({member: b"x", "x": b""}) if name.endswith("zip") else tar_of({member: b"x", "x": b""})
    folder = put(tmp_path, name, raw)
    with pytest.raises(DataError, match="has the name"):
        folder.read("set/x")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        entry = zipfile.ZipInfo("x")
        entry.external_attr = 0o120777 << 16
        packed.writestr(entry, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        put(tmp_path, "set/a.zip", out.getvalue()).read("set/x")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "set/../../x", ""])
def test_logical_names_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a name inside the data folder"):
        Folder(tmp_path).read(name)


@pytest.mark.parametrize("way", [".gz", ".xz", ".bz2", ".tar.gz", ".tar.xz", ".zip"])
def test_bombs_are_stopped_before_they_unpack(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "FREE", 1 << 20)
    zeros = bytes(1 << 24)
    if way in PACK:
        folder = put(tmp_path, "set/x" + way, PACK[way](zeros))
    elif way == ".zip":
        folder = put(tmp_path, "set/a.zip", zip_of({"x": zeros}))
    else:
        folder = put(tmp_path, "set/a" + way, tar_of({"x": zeros}, way.removeprefix(".tar")))
    with pytest.raises(DataError, match="refused as a decompression bomb"):
        folder.read("set/x")
    with pytest.raises(DataError, match="refused as a decompression bomb"):
        list(folder.walk("set"))


def test_a_zip_that_lies_about_its_size_is_caught(tmp_path: Path) -> None:
    raw = bytearray(zip_of({"x": b"a" * 5000}))
    at = raw.rindex(b"PK\x01\x02") + 24
    raw[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(DataError):
        put(tmp_path, "set/a.zip", bytes(raw)).read("set/x")


def test_a_folder_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"a/b.txt is not under .*nowhere; put that file there"):
        data.as_folder(tmp_path / "nowhere").read("a/b.txt")
    with pytest.raises(MissingData, match=r"a/b is not under .*nowhere"):
        list(data.as_folder(tmp_path / "nowhere").walk("a/b"))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: cannot be read"):
        data.as_folder(tmp_path / "file")
    if os.geteuid() == 0:
        pytest.skip("root reads everything: permissions cannot be tested")
    tmp_path.chmod(0)
    try:
        with pytest.raises(DataError, match="cannot be read"):
            data.as_folder(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_below_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    put(tmp_path, "set/x", b"")
    monkeypatch.setattr(Path, "is_file", denied)  # what the system answers anyone but root
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        Folder(tmp_path).read("set/x")
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        list(Folder(tmp_path).walk("set"))


def test_the_data_folder_is_the_argument_then_the_environment_then_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_DATA", "from-environment")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert data.folder_of("given") == Path("given")
    assert data.folder_of() == Path("from-environment")
    monkeypatch.delenv("SPARRING_DATA")
    assert data.folder_of() == Path("cache/sparring/data")


def test_locate_tells_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    assert not data.locate("mnist", tmp_path / "nowhere").complete
    write(tmp_path, SAMPLES["mnist"].files, ".gz")
    half = data.locate("mnist", tmp_path)
    assert half.missing == ("mnist/t10k-images-idx3-ubyte", "mnist/t10k-labels-idx1-ubyte")
    name, raw = archive(SAMPLES["imdb"], ".tar.bz2")
    put(tmp_path, name, raw)
    found = data.locate("imdb", tmp_path)
    assert found.complete
    assert found.found["imdb/aclImdb/"] is not None
    assert found.found["imdb/aclImdb/"].path == tmp_path / name


def test_the_message_for_a_missing_file_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="`sparring data get sst`"):
        Folder(tmp_path).read("sst/trees/dev.txt")
    with pytest.raises(MissingData) as caught:
        Folder(tmp_path).read("cnn/cnn/questions/x")
    assert "sparring data get" not in str(caught.value)


def test_every_entry_of_the_catalogue_can_be_had_somehow() -> None:
    for entry in data.list():
        assert entry.needs
        assert entry.terms
        assert entry.sources or entry.manual
        for source in entry.sources:
            assert all(url.startswith(("https://", "http://")) for url in source.urls)
            assert source.sha256 is None or len(bytes.fromhex(source.sha256)) == 32
            assert source.to.split("/")[0] == entry.needs[0].split("/")[0]


def test_vectors_that_nobody_fetches_are_answered_with_what_can_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        vectors("glove/glove.6B.100d.20k.txt", tmp_path)
    sentence = str(caught.value)
    assert "`sparring data get glove` where there is a network (it brings glove/glove.6B.100d.txt, " in sentence
    assert sentence.endswith("--set vectors=FILE takes other word vectors, --set vectors= none")
