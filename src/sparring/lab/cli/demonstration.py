"""`sparring demo`: is it worth it? Each family scored on what it claims, on embedded data, in a few minutes of two cores."""

from collections.abc import Sequence
from pathlib import Path

from ..compare import jobs, read_run
from ..errors import LabError
from ..pool import Job
from ..registry import task
from ..report.story import Chapter, write_story
from ..report.verdicts import headline
from ..task import Value
from .answer import Answer
from .show import comparison_table, console
from .work import do_jobs

DIGITS = "Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, 500 of them to test."
CHAPTERS = (
    Chapter(
        "few-labels-digits",
        "Few labels: what do unlabelled images bring?",
        ("plain", "noise", "vat", "salt"),
        "error",
        "lower",
        "Test error in % on 500 digits after training with 50 labels and 950 unlabelled images; L2 radius 1",
        f"{DIGITS} Noise is the control: a random direction where VAT and SALT seek the worst.",
    ),
    Chapter(
        "few-labels-digits",
        "Adversarial dropout: is the worst mask better than a random one?",
        ("random_dropout", "plain", "adversarial_dropout"),
        "error",
        "lower",
        "Test error in % on 500 digits, 50 labels; masks drop 5 % of the hidden units",
        f"{DIGITS} The random mask of equal size is the method to beat.",
    ),
    Chapter(
        "digits-ensemble",
        "Robustness: what is right after the strongest attack?",
        ("plain", "at", "lpd"),
        "worst-case accuracy",
        "higher",
        "Share in % of the first 50 test digits that no attack of the audit breaks (PGD on three losses with restarts, random "
        "search); L-infinity radius 0.1 of pixels in [0, 1]",
        f"{DIGITS} Three small networks trained at once: plainly, on FGSM examples (at), with Laplace priority dropout (lpd). "
        "“masked” is the share of seeds in which the audit finds that gradients hide the weakness.",
    ),
    Chapter(
        "dropout-images",
        "Uncertainty: does a confidence of 80 % come true?",
        ("mc", "concrete", "lbd-tied"),
        "ece",
        "lower",
        "Expected calibration error in % on 359 test digits, mean of the method's sampled predictions",
        "Scikit-learn's digits; “shifted” columns are the same digits under noise that nobody trained for. Monte-Carlo dropout "
        "with its rate fixed at one half, against rates that are learned.",
    ),
    Chapter(
        "sst",
        "Attention: does it point at what decides?",
        ("plain", "attention_noise", "attention_at", "attention_iat"),
        "pearson",
        "higher",
        "Mean correlation of attention with gradient importance over 200 test sentences (1 is best)",
        "Generated data: short reviews from a small grammar, 400 to train on. The heat maps below show such sentences.",
    ),
)
CHANGES: dict[str, dict[str, Value]] = {
    "few-labels-digits": {"epochs": 5},
    "digits-ensemble": {"epochs": 12, "width": 48, "attacked": 0, "swept": 0, "audited": 50},
    "sst": {"epochs": 6},
}


def do_demo(out: Path, cores: int | None, seeds: Sequence[int]) -> dict[Job, LabError]:
    """All runs of the demonstration in one pool, then a table and a sentence for every question."""
    wanted: dict[Path, Job] = {}
    for chapter in CHAPTERS:
        changes = CHANGES.get(chapter.task, {})
        for job in jobs(task(chapter.task), chapter.methods, seeds, "tiny", out, None, changes):
            wanted.setdefault(job.path, job)
    write_story(out, CHAPTERS)
    failures = do_jobs(list(wanted.values()), cores)
    screen = console()
    runs = [read_run(job.path) for job in wanted.values() if job not in failures]
    told = []
    for chapter in CHAPTERS:
        if comparison := chapter.comparison(runs):
            screen.print()
            screen.print(comparison_table(comparison, chapter.question))
            screen.print(headline(comparison))
            told.append({"question": chapter.question, "headline": headline(comparison), "comparison": comparison})
    Answer.say(chapters=told)
    return failures
