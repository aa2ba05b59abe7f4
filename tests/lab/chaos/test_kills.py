"""Commands killed at random times: the same command then ends as if nothing had happened."""

import hashlib
import http.server
import json
import multiprocessing
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
import torch

import sparring_command
from forked import PROCESSES
from sparring.lab.compare import read_runs
from sparring.lab.data import catalogue, sources

pytestmark = [pytest.mark.long, pytest.mark.chaos]
DRAW = random.SystemRandom()
KILLS = int(os.environ.get("SPARRING_KILLS", "30"))  # of each of run, compare and sweep; a third of it for the others
SHORT = ["--set", "epochs=2", "--set", "hidden=8", "--set", "batch=250"]
RUN = ["run", "sequential-digits", "--method", "vat", *SHORT, "--checkpoint-every", "0"]
COMPARE = ["compare", "sequential-digits", "--methods", "plain,vat", "--seeds", "1", *SHORT, "--cores", "2"]
SWEEP = ["sweep", "sequential-digits", "--method", "vat", "--param", "radius=0.5,1,2", *SHORT, "--cores", "1"]
BODY = bytes(range(256)) * 4000


def command_line(arguments: list[str], where: Path, url: str = "") -> None:
    """The command, from the moment when everything is imported; its own workers are forked too."""
    os.setsid()
    os.chdir(where)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(where / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    real = multiprocessing.get_context
    multiprocessing.get_context = lambda kind=None: real("fork" if kind == "spawn" else kind)
    if url:
        source = sources.Source("odd/x.bin", (url,), hashlib.sha256(BODY).hexdigest())
        catalogue.DATASETS["odd"] = catalogue.Dataset("odd", "a test", ("odd/x.bin",), "none", (source,))
    sys.argv = ["sparring", *arguments]
    sys.exit(sparring_command.main())


def begun(arguments: list[str], where: Path, url: str = "") -> Any:
    """The command on its way."""
    process = PROCESSES.Process(target=command_line, args=(arguments, where, url))
    process.start()
    return process


def ends(arguments: list[str], where: Path, url: str = "") -> float:
    """How long a command takes that nobody kills."""
    began, process = time.monotonic(), begun(arguments, where, url)
    process.join()
    assert process.exitcode == 0, (where / "said").read_text()
    return time.monotonic() - began


def killed(process: Any, within: float, where: Path) -> bool:
    """Kill a command at a random moment, half of the time with its workers; whether it was still there."""
    process.join(DRAW.uniform(0, within))
    hit = process.is_alive()
    if hit:
        os.kill(process.pid, signal.SIGKILL) if DRAW.random() < 0.5 else end_group(process.pid)
    process.join()
    said = (where / "said").read_text() if (where / "said").exists() else ""
    assert process.exitcode in (0, -signal.SIGKILL), said
    assert "Traceback" not in said
    return hit


def end_group(leader: int) -> None:
    """Kill a process and its children, or the process alone where it has not become a leader yet."""
    alone = os.getpgid(leader) != leader
    os.kill(leader, signal.SIGKILL) if alone else os.killpg(leader, signal.SIGKILL)


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
    whole, hits, rounds = tmp_path / "whole", 0, 0
    whole.mkdir()
    long = ends(arguments, whole)
    while hits < KILLS:
        place = tmp_path / str(rounds)
        place.mkdir()
        rounds += 1
        for _ in range(min(8, KILLS - hits)):
            hits += killed(begun(arguments, place), long, place)
        ends(arguments, place)
        assert figures(place / "runs") == figures(whole / "runs")
    print(json.dumps({"command": arguments[0], "kills": hits, "ends": rounds}))


@pytest.mark.parametrize("arguments", [RUN, COMPARE, SWEEP], ids=["run", "compare", "sweep"])
def test_the_same_from_the_shell(tmp_path: Path, arguments: list[str]) -> None:
    places = [tmp_path / name for name in ("whole", "killed")]
    line = [sys.executable, "-m", "sparring_command", *arguments]
    for place in places:
        place.mkdir()
    began = time.monotonic()
    subprocess.run(line, cwd=places[0], check=True, capture_output=True)
    long = time.monotonic() - began
    with subprocess.Popen(line, cwd=places[1], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        time.sleep(DRAW.uniform(0.5, 0.9) * long)
        process.kill()
        assert b"Traceback" not in process.stderr.read()
    subprocess.run(line, cwd=places[1], check=True, capture_output=True)
    assert figures(places[1] / "runs") == figures(places[0] / "runs")


def test_a_killed_report_leaves_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    ends([*RUN[:2], *SHORT], tmp_path)
    long = ends(["report", "runs"], tmp_path)
    page, hits = tmp_path / "runs" / "report.html", 0
    before = page.read_bytes()
    for _ in range(KILLS // 3):
        hits += killed(begun(["report", "runs"], tmp_path), long, tmp_path)
        assert page.read_bytes() == before
    print(json.dumps({"command": "report", "kills": hits}))


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[Callable[[], str]]:
    body = BODY

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


def test_a_killed_download_leaves_no_half_file(tmp_path: Path, slow_server: Callable[[], str]) -> None:
    hits, file, url = 0, tmp_path / "odd" / "x.bin", slow_server()
    get = ["data", "get", "odd", "--data", "."]
    long = ends(get, tmp_path, url)
    while hits < KILLS // 3:
        if file.exists():
            assert file.read_bytes() == BODY
            file.unlink()
        hits += killed(begun(get, tmp_path, url), long, tmp_path)
    ends(get, tmp_path, url)
    assert file.read_bytes() == BODY
    print(json.dumps({"command": "data get", "kills": hits}))
