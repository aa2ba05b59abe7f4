"""Comparisons: the numbers of the table against other libraries, and the pool that makes them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sparring.lab.compare import Run, compare, jobs, read_runs
from sparring.lab.errors import LabError
from sparring.lab.pool import Job, Orders, execute_all, finished
from sparring.lab.registry import task
from sparring.lab.report.verdicts import headline, verdict
from sparring.lab.statistics import mean, paired, spread
from sparring.lab.sweep import Plan, jobs_of

numbers = st.floats(-100, 100).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_the_paired_difference_is_scipys(pairs: list[tuple[float, float]]) -> None:
    base, method = zip(*pairs, strict=True)
    found = paired(base, method)
    gaps = [b - a for a, b in pairs]
    assert found.mean == pytest.approx(sum(gaps) / len(gaps), abs=1e-9)
    if max(gaps) - min(gaps) < 1e-6:
        return
    theirs = stats.ttest_rel(method, base)
    low, high = theirs.confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)


def test_few_seeds_make_no_claim() -> None:
    one = paired([1.0], [2.0])
    assert (one.mean, one.interval, one.clear) == (1.0, None, False)
    assert spread([1.0]) is None
    for gap in (2.0, 0.1):  # the same with every seed, to rounding: nothing to tell its chance by
        alike = paired([1.0, 2.0, 50.2], [1.0 + gap, 2.0 + gap, 50.2 + gap])
        assert alike.interval == pytest.approx((gap, gap))
        assert (alike.p_value, alike.clear) == (None, False)
    assert paired([1.0, 2.0], [1.0, 2.0]).p_value == 1.0
    assert math.isnan(mean([]))
    with pytest.raises(ValueError, match="same seeds"):
        paired([1.0], [1.0, 2.0])


def made(method: str, seed: int, error: float, seconds: float = 1.0, **overrides: object) -> Run:
    changes = ",".join(f"{k}={v}" for k, v in overrides.items())
    path = Path(f"{method}@{changes}" if changes else method) / f"seed-{seed}"
    config = {"task": "t", "scale": "tiny", "method": method, "seed": seed, "overrides": overrides}
    result = {
        "score": "error", "better": "lower", "test": {"error": error, "loss": error / 10},
        "seconds_per_step": seconds, "passes_per_step": 2 * seconds,
    }  # fmt: skip
    return Run(path, config, result)


def test_the_table_pairs_by_seed() -> None:
    runs = [made("plain", s, e) for s, e in ((0, 3.0), (1, 5.0), (2, 4.0))]
    runs += [made("salt", s, e, 4.5) for s, e in ((2, 3.5), (0, 2.0))]
    table = compare(runs, "plain", ["plain", "salt"])
    base, salt = table.rows
    assert (base.mean, base.spread, base.difference) == (4.0, 1.0, None)
    assert salt.difference.mean == pytest.approx(-0.75)
    assert (salt.time, salt.passes) == (4.5, 4.5)
    assert table.best is salt
    assert salt.others == {"loss": pytest.approx(0.275)}


def test_a_method_without_a_seed_in_common_is_no_baseline() -> None:
    runs = [made("plain", s, 5.0 + s) for s in (0, 1)] + [made("vat", s, 1.0) for s in (7, 8)]
    runs += [made("salt", s, 3.0 + 1.01 * s) for s in (0, 1)]
    table = compare(runs, "plain", ["vat", "plain", "salt"])
    assert [verdict(row, table.better) for row in table.rows] == ["no seed in common", "baseline", "better"]
    assert headline(table).startswith("Better than plain (5.5): salt (3.505)")


def test_variants_meet_the_baseline_that_shares_their_changes() -> None:
    runs = [made("plain", 0, 9.0), made("plain", 0, 5.0, epochs=9), made("salt", 0, 4.0, epochs=9, radius=2)]
    salt = compare(runs, "plain").rows[-1]
    assert salt.difference.mean == -1.0
    assert salt.label == "salt (epochs=9, radius=2)"
    alike = [made("plain", 0, 5.0, epochs=9), made("salt", 0, 4.0, epochs=9)]
    assert [row.label for row in compare(alike, "plain").rows] == ["plain", "salt"]


def test_changes_that_are_not_shared_choose_no_baseline() -> None:
    far = made("plain", 0, 9.0, epochs=5, lr=0.1, batch=8)
    near = made("plain", 0, 5.0, epochs=9, batch=16)
    salt = compare([far, near, made("salt", 0, 4.0, epochs=9)], "plain").rows[-1]
    assert salt.difference.mean == -1.0


def test_overrides_go_to_the_methods_that_know_them(tmp_path: Path) -> None:
    entry = task("sequential-digits")
    found = jobs(entry, ["plain", "salt"], [0], "tiny", tmp_path, overrides={"radius": 2.0, "epochs": 1})
    assert found[0].setting.overrides == {"epochs": 1}
    assert found[1].setting["radius"] == 2.0
    with pytest.raises(LabError, match="did you mean radius"):
        jobs(entry, ["plain", "salt"], [0], "tiny", tmp_path, overrides={"radiuss": 2.0})


def test_processes_do_the_runs_once_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    entry = task("sequential-digits")
    wanted = jobs(entry, ["plain"], [0, 1], "tiny", tmp_path, overrides={"epochs": 1, "hidden": 16})
    lost = task("smnist").setting("plain", "small", data=tmp_path / "nowhere")
    bad = Job(lost, tmp_path / "bad")
    done, words = [], []
    failures = execute_all([*wanted, bad], 2, Orders("typed"), words.append, done.append)
    assert set(done) == {*wanted, bad}
    assert list(failures) == [bad]
    assert failures[bad].exit_code == 3
    assert {word[0] for word in words} <= {job.path for job in wanted}
    assert [run.seed for run in read_runs(tmp_path)] == [0, 1]
    stamp = (wanted[0].path / "result.json").stat().st_mtime_ns
    assert execute_all(wanted, 2, Orders()) == {}
    assert (wanted[0].path / "result.json").stat().st_mtime_ns == stamp


def test_a_folder_without_runs_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is not a folder with runs"):
        read_runs(tmp_path / "none")


def test_progress_says_what_was_changed(tmp_path: Path) -> None:
    setting = task("sequential-digits").setting("vat", seed=3)
    assert Job(setting, tmp_path).label == "vat · seed 3"
    plan = Plan(task("sequential-digits"), "vat", "tiny", [3], {}, tmp_path)
    assert jobs_of(plan, {"radius": 2.0})[0].label == "vat · radius=2.0 · seed 3"


def test_a_job_may_wait_for_another_to_end(tmp_path: Path) -> None:
    """None holds the pool back until a run under way has ended; then the source is asked again."""
    entry = task("few-labels-digits")
    first, second = (
        Job(entry.setting("plain", seed=seed, overrides={"epochs": 1, "epoch_batches": 2}), tmp_path / str(seed))
        for seed in (0, 1)
    )

    def source():
        yield first
        while not finished(first):
            yield None
        yield second

    ended: list[Job] = []
    assert execute_all(source(), 2, Orders(), done=ended.append) == {}
    assert ended == [first, second]
