"""Shared sweeps: real processes on one storage, killed at random, and every point is finished exactly once."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import torch
from optuna.trial import TrialState

from forked import PROCESSES
from sparring.lab.cli import work as cli_work
from sparring.lab.errors import RunError
from sparring.lab.registry import task
from sparring.lab.runs.run import execute
from sparring.lab.sweep import Plan, claims, parse_param, study_of, sweep_all

POINTS = [0.1, 0.2, 0.5, 1, 2, 5]


def plan_of(out: Path, storage: str | None, param: str = "radius=0.1,0.2,0.5,1,2,5") -> Plan:
    short = {"epochs": 1, "hidden": 8}
    return Plan(task("sequential-digits"), "vat", "tiny", [0], dict([parse_param(param)]), out, None, short, storage)


def here(wanted, cores, **rest):
    """The runs in this very process, so that killing it kills them."""
    for job in wanted:
        execute(job.setting, job.path, wait=lambda: time.sleep(0.02))
    return {}


def worker(plan: Plan, trials: int | None = None, elsewhere: bool = False) -> None:
    torch.set_num_threads(1)
    cli_work.do_jobs = here
    if elsewhere:  # as if on another machine: only silence tells that it is dead
        name = f"machine-{os.getpid()}"
        claims.machine, claims.BEAT, claims.GRACE = (lambda: name), 0.1, 1.5
    sweep_all(plan, trials, 1)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, on a socket of its own."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL here (pip install psycopg[binary])")
    home = Path(tempfile.mkdtemp(prefix="sparring-pg-"))
    root = os.geteuid() == 0  # the server refuses to run as root; Debian's package makes a user for it
    if root:
        shutil.chown(home, "postgres")
    run = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if root else []
    tools = programs[-1].parent
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": home}
    options = f"-k {home} -c listen_addresses='' -c fsync=off"
    subprocess.run([*run, tools / "initdb", "-D", home / "data", "-A", "trust", "-U", "postgres"], **quiet)
    subprocess.run([*run, tools / "pg_ctl", "-D", home / "data", "-o", options, "-w", "start"], **quiet)
    yield f"postgresql://postgres@/postgres?host={home}"
    subprocess.run([*run, tools / "pg_ctl", "-D", home / "data", "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["sqlite", "journal", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return {"sqlite": f"sqlite:///{tmp_path / 'shared.db'}", "journal": f"journal:{tmp_path / 'shared.journal'}"}[
        request.param
    ]


def finish(plans: list[Plan], kills: int, trials: int | None = None, elsewhere: bool = False) -> None:
    """Workers on one storage; `kills` of them die at random and are replaced, until all that are left have ended."""
    draw = random.SystemRandom()
    alive = {}

    def start(plan: Plan) -> None:
        process = PROCESSES.Process(target=worker, args=(plan, trials, elsewhere))
        process.start()
        alive[process] = plan

    for plan in plans:
        start(plan)
    deadline = time.monotonic() + 240
    while alive:
        assert time.monotonic() < deadline
        time.sleep(draw.uniform(0.05, 0.8))
        if kills and alive:
            process = draw.choice(list(alive))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                kills -= 1
                process.join()
        for process, plan in list(alive.items()):
            if not process.is_alive():
                process.join()
                del alive[process]
                assert process.exitcode in (0, -signal.SIGKILL)
                if process.exitcode:
                    start(plan)


def check_grid(plan: Plan, points: list[float]) -> None:
    trials = study_of(plan).get_trials()
    done = Counter(trial.params["radius"] for trial in trials if trial.state == TrialState.COMPLETE)
    assert done == dict.fromkeys(points, 1), "a point twice, or a hole"
    assert not [trial for trial in trials if trial.state in (TrialState.RUNNING, TrialState.WAITING)]


def test_every_point_is_finished_once_whoever_is_killed(storage: str, tmp_path: Path) -> None:
    plans = [plan_of(tmp_path / name, storage) for name in ("a", "b")]
    finish(plans, kills=4)
    check_grid(plans[0], POINTS)
    assert len(sweep_all(plans[1], None, 1)) == len(POINTS), "a later worker finds all done"


@pytest.mark.long
@pytest.mark.chaos
def test_silence_tells_that_a_worker_of_another_machine_is_dead(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, None, "radius=0.1,0.2,0.5") for _ in range(2)]
    finish(plans, kills=1, elsewhere=True)
    check_grid(plans[0], POINTS[:3])


@pytest.mark.long
@pytest.mark.chaos
def test_ranges_are_searched_to_the_number_asked_for_and_no_further(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"journal:{tmp_path / 'log'}", "radius=0.1:10:log")
    finish([plan] * 3, kills=2, trials=5)
    states = Counter(trial.state for trial in study_of(plan).get_trials())
    assert (states[TrialState.COMPLETE], states[TrialState.RUNNING]) == (5, 0)


def test_many_workers_that_claim_at_once_never_share_a_point(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, None, "radius=" + ",".join(str(n) for n in range(1, 13)))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    views = [claims.Claims(plan, study_of(plan), 12) for _ in range(4)]
    taken: list[float] = []
    import threading

    def take(view: claims.Claims) -> None:
        while (trial := view.take()) is not None:
            taken.append(trial.params["radius"])

    threads = [threading.Thread(target=take, args=(view,)) for view in views]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 13))


def test_a_worker_that_was_thought_dead_does_no_harm(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, None, "radius=1,2")
    first, second = (claims.Claims(plan, study_of(plan), 2) for _ in range(2))
    trial = first.take()
    second.lose(trial.number, trial._trial_id)
    again = second.take()
    assert again.params == trial.params
    assert not first.end(trial.number, TrialState.COMPLETE, 0.5)
    assert second.end(again.number, TrialState.COMPLETE, 0.25)


def test_a_storage_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database at all, only text that is long enough to be read as one")
    for url in ("postgresql://nobody@/none?host=/nowhere", f"sqlite:///{tmp_path / 'file'}", "nonsense://x"):
        with pytest.raises(RunError, match="cannot open the sweep's storage") as raised:
            study_of(plan_of(tmp_path, url))
        assert "\n" not in str(raised.value)
