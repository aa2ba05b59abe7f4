"""Downloads against a local server that drops connections, ignores ranges, changes files and serves wrong bytes."""

import errno
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import sparring.lab.data as data
from sparring.lab.data import DataError, fetch
from sparring.lab.data import download as download_module
from sparring.lab.data.catalogue import DATASETS, Dataset
from sparring.lab.data.sources import Source

BODY = bytes(range(256)) * 2000  # 512 kB
SHA = hashlib.sha256(BODY).hexdigest()


@dataclass
class Server:
    """What the next requests meet, and what they asked."""

    url: str = ""
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    etag: str = '"v1"'


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

        def do_GET(self) -> None:
            fault = server.faults.pop(0) if server.faults else ""
            server.asked.append(self.headers.get("Range") or "all")
            body = bytes(len(BODY)) if fault == "wrong" else BODY
            start = 0
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            fresh = self.headers.get("If-Range") in (None, server.etag)
            if match and fresh and fault != "no-range":
                start = int(match[1])
            if fault.startswith("to "):
                self.send_response(302)
                self.send_header("Location", fault[3:])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fault == "no-length":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)
                return
            if fault == "503":
                self.send_error(503)
                return
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                shift = 1 if fault == "shifted" else 0
                self.send_header("Content-Range", f"bytes {start - shift}-{len(body) - 1}/{len(body)}")
            if fault == "chunked-drop":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"10\r\n" + body[:16] + b"\r\n")
                return
            self.send_header("Content-Length", str(len(body) - start))
            self.send_header("ETag", server.etag)
            self.end_headers()
            if fault == "drop":
                self.wfile.write(body[start : start + 100_000])
                return
            if fault == "slow":
                for at in range(start, len(body), 4096):
                    self.wfile.write(body[at : at + 4096])
                    time.sleep(0.02)
                return
            self.wfile.write(body[start:])

    return Handler


class Quiet(ThreadingHTTPServer):
    """Says nothing when a client hangs up, which these clients do on purpose."""

    def handle_error(self, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    http = Quiet(("127.0.0.1", 0), handler(state))
    http.daemon_threads = False
    http.block_on_close = True
    state.url = f"http://127.0.0.1:{http.server_address[1]}/set.bin"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def whole(path: Path) -> bool:
    return path.read_bytes() == BODY and not path.with_name(path.name + ".part").exists()


def test_a_file_arrives_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(server.url, tmp_path / "deep" / "set.bin", SHA, lambda *step: seen.append(step))
    assert whole(path)
    assert seen[0] == ("set.bin", 0, len(BODY))
    assert seen[-1] == ("set.bin", len(BODY), len(BODY))
    assert [step[1] for step in seen] == sorted(step[1] for step in seen)


@pytest.mark.parametrize("sha", [SHA, None])
def test_a_dropped_line_is_resumed_where_it_broke(server: Server, tmp_path: Path, sha: str | None) -> None:
    server.faults = ["drop", "drop"]
    assert whole(fetch(server.url, tmp_path / "set.bin", sha, pause=0))
    assert server.asked == ["all", "bytes=100000-", "bytes=200000-"]


def test_a_later_call_resumes_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.faults = ["drop"]
    with pytest.raises(DataError, match=r"could not be downloaded after 1 attempts .*dropped after 100,000 of 512,000"):
        fetch(server.url, tmp_path / "set.bin", SHA, attempts=1)
    assert not (tmp_path / "set.bin").exists()
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA))
    assert server.asked == ["all", "bytes=100000-"]


def test_without_a_sum_a_later_call_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(b"of another version")
    assert whole(fetch(server.url, tmp_path / "set.bin"))
    assert server.asked == ["all"]


@pytest.mark.parametrize("fault", ["no-range", "shifted"])
def test_a_server_that_answers_another_range_does_no_harm(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = ["drop", fault]
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0))


def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(server: Server, tmp_path: Path) -> None:
    server.faults = ["drop"]
    calls = 0

    def progress(name: str, done: int, total: int | None) -> None:
        nonlocal calls
        calls += 1
        if done >= 65_536:
            server.etag = '"v2"'

    assert whole(fetch(server.url, tmp_path / "set.bin", None, progress, pause=0))


def test_wrong_bytes_never_become_the_file(server: Server, tmp_path: Path) -> None:
    server.faults = ["wrong"] * 3
    with pytest.raises(
        DataError, match=f"its SHA-256 is [0-9a-f]{{64}}, expected {SHA}, so the bytes were thrown away"
    ):
        fetch(server.url, tmp_path / "set.bin", SHA, attempts=3, pause=0)
    assert not (tmp_path / "set.bin").exists()
    assert (tmp_path / "set.bin.part").read_bytes() == b""


def test_a_part_spoilt_on_disk_is_thrown_away_once_its_sum_is_seen(server: Server, tmp_path: Path) -> None:
    for spoilt in (b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 5)):
        (tmp_path / "set.bin").unlink(missing_ok=True)
        (tmp_path / "set.bin.part").write_bytes(spoilt)
        assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0))


def test_a_whole_part_left_behind_is_recognised(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(BODY)
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0))
    assert server.asked == [f"bytes={len(BODY)}-"]


@pytest.mark.parametrize("fault", ["503", "chunked-drop"])
def test_failing_answers_are_tried_again(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = [fault, fault]
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0))


def test_mirrors_take_over(server: Server, tmp_path: Path) -> None:
    dead = "http://127.0.0.1:9/set.bin"  # nothing listens on the discard port
    assert whole(fetch([dead, server.url], tmp_path / "set.bin", SHA, pause=0))


def test_no_network_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set.bin: could not be downloaded after 2 attempts \(http://127.0.0.1:9/"):
        fetch("http://127.0.0.1:9/set.bin", tmp_path / "set.bin", SHA, attempts=2, pause=0)
    with pytest.raises(DataError, match="neither http nor https"):
        fetch("file:///etc/passwd", tmp_path / "set.bin")


def test_a_full_disk_leaves_no_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match="no space left on the disk; free some and run again"):
            fetch(server.url, tmp_path / "set.bin", SHA)
    assert not (tmp_path / "set.bin").exists()
    with monkeypatch.context() as patch:
        patch.setattr(download_module.shutil, "disk_usage", lambda folder: Free())
        with pytest.raises(DataError, match="no space left"):
            fetch(server.url, tmp_path / "other.bin", SHA)
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA))


def test_a_write_the_system_refuses_leaves_no_file_and_is_resumed(server: Server, tmp_path: Path) -> None:
    """A real refusal by the kernel, half-way: files may not grow past 200 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(DataError, match=r"set.bin: cannot be written \(File too large\)"):
            fetch(server.url, tmp_path / "set.bin", SHA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "set.bin").exists()
    assert 0 < (tmp_path / "set.bin.part").stat().st_size <= 200_000
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA))
    assert server.asked[1].startswith("bytes=")


class Free:
    """A disk with ten bytes left."""

    free = 10


def test_two_processes_cannot_fetch_one_file(server: Server, tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "set.bin.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="is being downloaded by another process"):
            fetch(server.url, tmp_path / "set.bin", SHA)


def test_a_killed_process_leaves_no_half_file_and_the_next_one_resumes(server: Server, tmp_path: Path) -> None:
    server.faults = ["slow"]
    code = (
        "import sys; from pathlib import Path; from sparring.lab.data.download import fetch;"
        "fetch(sys.argv[1], Path(sys.argv[2]), sys.argv[3])"
    )
    path = tmp_path / "set.bin"
    child = subprocess.Popen([sys.executable, "-c", code, server.url, str(path), SHA])
    part = tmp_path / "set.bin.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 20_000) and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not path.exists()
    assert data.Folder(tmp_path).find("set.bin") is None
    assert 0 < part.stat().st_size < len(BODY)
    assert whole(fetch(server.url, path, SHA))
    assert server.asked[1].startswith("bytes=")


def test_get_fetches_what_is_missing_and_only_that(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Dataset("tiny", "a test", ("tiny/set.bin",), "none", (Source("tiny/set.bin", (server.url,), SHA),))
    monkeypatch.setitem(DATASETS, "tiny", entry)
    monkeypatch.setitem(DATASETS, "hand", Dataset("hand", "by hand", ("hand/x",), "none", (), "ask the author"))
    assert data.get("tiny", tmp_path) == (tmp_path / "tiny" / "set.bin",)
    assert data.get("tiny", tmp_path) == (tmp_path / "tiny" / "set.bin",)
    assert len(server.asked) == 1
    with pytest.raises(DataError, match="hand cannot be downloaded by a program: ask the author; the data folder is"):
        data.get("hand", tmp_path)
    with pytest.raises(DataError, match="did you mean tiny"):
        data.get("tinny", tmp_path)


@pytest.mark.parametrize("where", ["ftp://127.0.0.1/set.bin", "file:///etc/passwd", "data:,x", "FILE:///etc/passwd"])
def test_redirections_to_anything_but_http_are_refused(server: Server, tmp_path: Path, where: str) -> None:
    server.faults = [f"to {where}"] * 5
    with pytest.raises(DataError, match=r"leads to .*refused|not allowed"):
        fetch(server.url, tmp_path / "set.bin", pause=0.0)
    assert not (tmp_path / "set.bin").exists()


def test_a_redirection_is_followed_but_not_from_https_to_http(server: Server, tmp_path: Path) -> None:
    server.faults = [f"to {server.url}"]
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0.0))
    asked = urllib.request.Request("https://example.org/set.bin")
    with pytest.raises(DataError, match="not https://"):
        download_module.Redirections().redirect_request(asked, None, 302, "", {}, "http://example.org/set.bin")


@pytest.mark.parametrize("sha", [SHA, None])
def test_more_bytes_than_belong_there_are_refused(server: Server, tmp_path: Path, sha: str | None) -> None:
    with pytest.raises(DataError, match="offers 512,000 bytes; refused"):
        fetch(server.url, tmp_path / "set.bin", sha, pause=0.0, limit=100_000)
    server.faults = ["no-length"]
    with pytest.raises(DataError, match=r"sent more than 100,000 bytes|does not say how long"):
        fetch(server.url, tmp_path / "set.bin", sha, pause=0.0, limit=100_000)
    assert not (tmp_path / "set.bin").exists()
    assert (tmp_path / "set.bin.part").stat().st_size == 0


def test_without_a_sum_the_server_must_tell_the_length(server: Server, tmp_path: Path) -> None:
    server.faults = ["no-length", "no-length"]
    with pytest.raises(DataError, match="does not say how long the file is"):
        fetch(server.url, tmp_path / "set.bin", pause=0.0)
    assert whole(fetch(server.url, tmp_path / "set.bin", SHA, pause=0.0)), "a sum is enough"


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_a_part_that_is_not_a_plain_file_is_refused(server: Server, tmp_path: Path, kind: str) -> None:
    precious, part = tmp_path / "precious", tmp_path / "set.bin.part"
    precious.write_text("mine")
    if kind == "link":
        part.symlink_to(precious)
    elif kind == "hard link":
        part.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    with pytest.raises(DataError, match=r"not a plain file|Is a directory"):
        fetch(server.url, tmp_path / "set.bin", SHA, pause=0.0)
    assert precious.read_text() == "mine"
    assert not server.asked


def test_what_nobody_can_check_is_marked_and_asked_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Dataset("odd", "an odd one", ("odd/set.bin",), "none", (Source("odd/set.bin", (server.url,)),))
    monkeypatch.setitem(DATASETS, "odd", entry)
    with pytest.raises(DataError, match="data get odd --unverified"):
        data.get("odd", tmp_path)
    assert not server.asked
    assert whole(data.get("odd", tmp_path, unverified=True)[0])
    assert {name for name, entry in DATASETS.items() if not entry.verified} == {
        "odd", "babi", "multi30k", "iwslt15-en-vi", "fasttext", "ml-1m", "ml-latest-small",
    }  # fmt: skip
