"""Commands killed at random times: the same command then ends as if nothing had happened."""

import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.lab.compare import read_runs

pytestmark = [pytest.mark.long, pytest.mark.chaos]
DRAW = random.SystemRandom()
KILLS = int(os.environ.get("SPARRING_KILLS", "30"))  # of each of run, compare and sweep; a third of it for the others
SHORT = ["--set", "epochs=2", "--set", "hidden=8"]
RUN = ["run", "sequential-digits", "--method", "vat", *SHORT, "--checkpoint-every", "0"]
COMPARE = ["compare", "sequential-digits", "--methods", "plain,vat", "--seeds", "1", *SHORT, "--cores", "2"]
SWEEP = ["sweep", "sequential-digits", "--method", "vat", "--param", "radius=0.5,1,2", *SHORT, "--cores", "1"]


def command(arguments: list[str], where: Path, **more: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "sparring_command", *arguments]
    return subprocess.Popen(line, cwd=where, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **more)


def ends(arguments: list[str], where: Path) -> int:
    """The exit code of a command that nobody kills."""
    process = command(arguments, where)
    process.communicate()
    return process.returncode


def kill_until_done(arguments: list[str], where: Path, kills: int) -> int:
    """Repeat a command, killing it at random moments `kills` times, then let it end; returns how often it was killed."""
    hits, longest = 0, 12.0
    while hits < kills:
        process = command(arguments, where)
        deadline = time.monotonic() + DRAW.uniform(0.5, longest)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            hits += 1
        _, said = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said
        assert "Traceback" not in said, said
        if process.returncode == 0:
            break
    process = command(arguments, where)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return hits


def figures(where: Path) -> dict[str, Any]:
    """What the runs under a folder found, without times."""
    times = ("seconds_per_step",)
    return {
        str(run.path.relative_to(where)): [
            {k: v for k, v in run.result.items() if k not in times},
            [{k: v for k, v in line.items() if k not in times} for line in run.metrics],
        ]
        for run in read_runs(where)
    }


@pytest.mark.parametrize("arguments", [RUN, COMPARE, SWEEP], ids=["run", "compare", "sweep"])
def test_killed_commands_end_as_if_nothing_had_happened(tmp_path: Path, arguments: list[str]) -> None:
    kills = KILLS
    whole, killed, hits, round = tmp_path / "whole", tmp_path / "killed", 0, 0
    whole.mkdir()
    assert ends(arguments, whole) == 0
    while hits < kills:
        place = killed / str(round)
        place.mkdir(parents=True)
        hits, round = hits + kill_until_done(arguments, place, min(8, kills - hits)), round + 1
        assert figures(place / "runs") == figures(whole / "runs")
    print(json.dumps({"command": arguments[0], "kills": hits}))


def test_a_killed_report_leaves_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    assert ends([*RUN[:2], *SHORT], tmp_path) == 0
    assert ends(["report", "runs"], tmp_path) == 0
    page, hits = tmp_path / "runs" / "report.html", 0
    before = page.read_bytes()
    for _ in range(KILLS // 3):
        process = command(["report", "runs"], tmp_path)
        time.sleep(DRAW.uniform(2.0, 8.0))
        hits += process.poll() is None
        process.kill()
        process.communicate()
        assert page.read_bytes() == before
    print(json.dumps({"command": "report", "kills": hits}))


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[Callable[[], str]]:
    body = bytes(range(256)) * 4000

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

        def do_GET(self) -> None:
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            for at in range(start, len(body), 8192):
                try:
                    self.wfile.write(body[at : at + 8192])
                except OSError:
                    return
                time.sleep(0.02)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield lambda: f"http://127.0.0.1:{server.server_address[1]}/x.bin"
    server.shutdown()
    thread.join()
    server.server_close()


GET = """
import hashlib, sys
from sparring.lab.data import catalogue, sources
body = bytes(range(256)) * 4000
source = sources.Source("odd/x.bin", (sys.argv[1],), hashlib.sha256(body).hexdigest())
catalogue.DATASETS["odd"] = catalogue.Dataset("odd", "a test", ("odd/x.bin",), "none", (source,))
from sparring.lab.cli.main import main
sys.exit(main(["data", "get", "odd", "--data", "."]))
"""


def test_a_killed_download_leaves_no_half_file(tmp_path: Path, slow_server: Callable[[], str]) -> None:
    hits, file = 0, tmp_path / "odd" / "x.bin"
    line = [sys.executable, "-c", GET, slow_server()]
    while hits < KILLS // 3:
        process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + DRAW.uniform(1.0, 12.0)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        hits += process.poll() is None
        process.kill()
        _, said = process.communicate()
        assert "Traceback" not in said
        if file.exists():
            assert file.read_bytes() == bytes(range(256)) * 4000
            file.unlink()
    assert subprocess.run(line, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    assert file.read_bytes() == bytes(range(256)) * 4000
    print(json.dumps({"command": "data get", "kills": hits}))
