"""Verdicts on synthetic records: what is planted is found, what is not there is not confirmed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sparring.lab.runs.files import sealed
from sparring.lab.studies import Arm, Expect, Study
from sparring.lab.studies.page import controls
from sparring.lab.studies.plan import wanted
from sparring.lab.studies.results import describe, results
from sparring.lab.studies.verdict import holm, judge, judge_all, power, seeds_needed

STUDY = Study(
    name="synthetic", claim="noise helps", source="nowhere", task="few-labels-digits", scale="tiny", metric="error",
    better="lower", arms=(Arm("plain"), Arm("noise"), Arm("vat", control="noise")),
    expects=(Expect("noise", "plain", 2.0), Expect("vat", "plain", 4.0), Expect("vat", "noise", 2.0)),
)  # fmt: skip


def plant(folder: Path, gains: dict[str, float], seeds: int, spread: float = 1.0, seed: int = 0) -> Study:
    """Records in which every arm is better than plain by `gains`, give or take `spread`."""
    study, random = replace(STUDY, seeds=tuple(range(seeds))), np.random.default_rng(seed)
    base = 20 + 3 * random.standard_normal(seeds)  # seeds differ by more than methods do: pairing takes that out
    lines = []
    for arm in study.arms:
        for run in wanted(study, arm, {}, "evaluation"):
            k = run.setting.seed
            error = base[k] - gains.get(arm.name, 0.0) + (arm.name != "plain") * spread * random.standard_normal()
            entries = {"task": study.task, "scale": "tiny", "method": arm.name, "values": dict(run.setting.values)}
            entries |= {"seed": k, "role": "evaluation", "version": 1, "validation": {}, "test": {"error": error}}
            lines.append(json.dumps(sealed(entries)))
    (folder / study.file).write_text("\n".join(lines) + "\n")
    return study


def test_a_planted_effect_is_confirmed(tmp_path: Path) -> None:
    found = results(plant(tmp_path, {"noise": 2.0, "vat": 4.5}, 40), tmp_path)
    assert found.verdict == "confirmed", found.sentence
    row = next(row for row in found.rows if row.arm.name == "vat")
    assert row.to_baseline.mean == pytest.approx(-4.5, abs=0.6)
    assert row.to_control.mean == pytest.approx(-2.5, abs=0.8)


def test_less_than_half_of_the_reported_effect_is_refuted_at_enough_seeds(tmp_path: Path) -> None:
    found = results(plant(tmp_path, {"noise": 0.5, "vat": 1.0}, 100), tmp_path)
    assert found.verdict == "refuted"
    by_part = {(expect.arm, expect.than): finding for expect, finding in found.findings}
    assert by_part["vat", "plain"].verdict == "refuted"
    assert "helps, but by less than half" in found.sentence  # it is above zero all the same
    few = results(plant(tmp_path, {"noise": 1.0, "vat": 2.0}, 5, spread=3.0), tmp_path)
    assert few.verdict == "open"


def test_the_other_side_is_refuted_and_few_seeds_leave_it_open(tmp_path: Path) -> None:
    assert results(plant(tmp_path, {"noise": -3.0, "vat": -3.0}, 20), tmp_path).verdict == "refuted"
    assert results(plant(tmp_path, {"noise": 2.0, "vat": 4.0}, 4, spread=0.01), tmp_path).verdict == "open"
    assert "open after 4 of 4 seeds" in results(plant(tmp_path, {"noise": 2.0}, 4), tmp_path).sentence


def test_no_effect_is_confirmed_at_most_one_time_in_twenty() -> None:
    """Several parts, none of them true: the chance that any is confirmed stays below 5 % (of 800 simulated studies)."""
    random, wrong, count = np.random.default_rng(0), 0, 800
    for _ in range(count):
        parts = [(list(random.standard_normal(5)), None) for _ in range(4)]
        wrong += any(finding.verdict == "confirmed" for finding in judge_all(parts))
    limit = stats.binom.ppf(0.999, count, 0.05)
    assert wrong <= limit
    assert wrong > 0.25 * count * 0.05  # one side of 5 %, not of nothing


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_definition(p_values: list[float]) -> None:
    """Reject in order of size as long as p <= level / (m - k): adjusted p is the level at which that happens first."""
    adjusted, order, m = holm(p_values), sorted(p_values), len(p_values)
    for p, found in zip(p_values, adjusted, strict=True):
        steps = [(m - k) * q for k, q in enumerate(order) if q <= p]
        assert found == pytest.approx(min(1.0, max(steps)), rel=1e-9)
    assert holm([0.01, 0.02, 0.5]) == pytest.approx([0.03, 0.04, 0.5])
    assert holm([0.01, math.nan, 0.001]) == pytest.approx([0.02, 1.0, 0.003])  # one arm that diverged spoils no other


def test_intervals_are_students_at_holms_level() -> None:
    gains = [[2.0, 2.5, 1.5, 2.2, 1.8], [0.3, -0.1, 0.4, 0.2, 0.1]]
    first, second = judge_all([(gains[0], None), (gains[1], None)])
    for found, values, level in ((first, gains[0], 0.975), (second, gains[1], 0.95)):
        theirs = stats.ttest_1samp(values, 0.0)
        assert found.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)))
        assert found.corrected == pytest.approx(tuple(theirs.confidence_interval(level)))
    assert first.p_value == pytest.approx(2 * stats.ttest_1samp(gains[0], 0.0).pvalue)


def test_power_is_the_share_of_simulated_tests_that_find_it() -> None:
    random = np.random.default_rng(0)
    for effect, seeds in ((1.0, 5), (1.0, 12), (0.4, 30)):
        drawn = effect + random.standard_normal((20_000, seeds))
        share = float((stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05).mean())
        assert power(effect, 1.0, seeds) == pytest.approx(share, abs=0.012)
    needed = seeds_needed(0.5, 1.0)
    assert needed == 34  # Cohen's table for one sample, d = .5, two-sided 5 %, power 80 %
    assert power(0.5, 1.0, needed) >= 0.8 > power(0.5, 1.0, needed - 1)
    assert seeds_needed(1e-3, 1.0) is None
    assert seeds_needed(1.0, 0.0) == 2


def test_an_open_part_says_how_many_seeds_would_settle_it() -> None:
    found = judge([2.0, -1.0, 3.0, 0.5, 1.0], effect=2.0)
    assert found.verdict == "open"
    assert found.seeds == seeds_needed(found.mean, float(np.std(found.gains, ddof=1)))
    assert judge([1.0, float("nan"), 2.0, 1.0, 1.0], effect=1.0).verdict == "open"


def test_runs_that_diverged_are_told_and_in_no_mean(tmp_path: Path) -> None:
    study = plant(tmp_path, {"noise": 2.0, "vat": 4.0}, 6)
    lines = [json.loads(line) for line in (tmp_path / study.file).read_text().splitlines()]
    lines[-1]["test"] = None
    again = [sealed({name: value for name, value in line.items() if name != "seal"}) for line in lines]
    (tmp_path / study.file).write_text("\n".join(map(json.dumps, again)))
    found = results(study, tmp_path)
    assert "vat diverged with 1 seeds" in found.sentence
    assert len(next(row for row in found.rows if row.arm.name == "vat").values) == 5


def test_the_table_of_controls_counts_the_seeds_that_are_paired(tmp_path: Path) -> None:
    def without_noise(first: int) -> str:
        study = plant(tmp_path, {"vat": 4.0}, 8, spread=0.1)
        lines = [json.loads(line) for line in (tmp_path / study.file).read_text().splitlines()]
        kept = [line for line in lines if line["method"] != "noise" or line["seed"] < first]
        (tmp_path / study.file).write_text("\n".join(map(json.dumps, kept)) + "\n")
        return controls([results(study, tmp_path)])

    assert "| 6 | **better** |" in without_noise(first=6)
    assert "vat" not in without_noise(first=3), "three pairs are fewer than five"


def test_a_study_that_was_never_run_says_what_it_would_take(tmp_path: Path) -> None:
    found = results(replace(STUDY, hours=6), tmp_path)
    assert found.sentence == "open: nothing has been run; about 6 CPU hours for all of it, an estimate"
    assert found.hours_left == 6
    assert results(STUDY, tmp_path).sentence == "open: nothing has been run"
    begun = results(replace(plant(tmp_path, {}, 5), hours=6), tmp_path)
    assert begun.hours_left == 0  # what was recorded counts, not the estimate


def test_gains_without_any_spread_settle_nothing() -> None:
    """Runs that all kept one start have gains of exactly zero: that refutes nothing, and a constant gain confirms nothing."""
    assert judge([0.0] * 5, 4.4).verdict == "open"
    assert judge([2.0] * 5, 2.0).verdict == "open"
    assert judge([0.0, 0.0, 0.0, 0.0, 0.01], 4.4).verdict == "refuted"
    for gain in (0.0, 0.5):
        found = judge([gain] * 5, None)
        assert (found.alike, found.seeds) == (True, None)
        assert "the same with every seed" in describe(
            STUDY, STUDY.expects[0], found, {"vat": 1.0, "plain": 1.0, "noise": 1.0}
        )


def test_gains_without_any_spread_take_no_part_in_holms_order() -> None:
    real = [2.0, 2.5, 1.5, -0.2, 1.8]
    alike, beside = judge_all([([0.5] * 5, None), (real, None)])
    assert alike.verdict == "open"
    assert beside.p_value == pytest.approx(
        2 * stats.ttest_1samp(real, 0.0).pvalue
    )  # two parts, and this one is the first


def test_the_table_of_controls_does_not_call_equal_gains_certain(tmp_path: Path) -> None:
    study = plant(tmp_path, {"noise": 2.0, "vat": 4.0}, 6, spread=0.0)
    assert "not told apart" in controls([results(study, tmp_path)])
