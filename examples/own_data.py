"""Three data sets as anybody would have them on disk, and the whole way from there to a report.

    python examples/own_data.py FOLDER            # writes mnist/, ag_news.csv and cancer.csv into FOLDER
    python examples/own_data.py FOLDER --run      # also runs the commands of docs/own-data.md and prints what they say

MNIST and AG News are read from $SPARRING_DATA (`sparring data get mnist`, `sparring data get ag_news`).
"""

import csv
import shlex
import subprocess
import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_breast_cancer

from sparring.lab.data.files import as_folder
from sparring.lab.data.idx import mnist

COMMANDS = (
    "sparring compare images --set train=mnist/train --set test=mnist/test --methods plain,noise,vat --seeds 3 --out images",
    "sparring compare text --set train=ag_news.csv --set header=false --set text=3 --set label=1 --set model=cnn"
    " --set examples=2000 --methods plain,noise,vat,attention_at --seeds 3 --out text",
    "sparring compare table --set train=cancer.csv --set target=diagnosis --methods plain,noise,vat,adversarial_training"
    " --seeds 5 --out table",
)  # fmt: skip


def write_files(folder: Path) -> None:
    """MNIST's first images as PNG files in a folder for each digit, AG News as its csv, breast cancer as a csv."""
    for split, count in (("train", 2000), ("test", 1000)):
        found = mnist(split)
        for number, (pixels, label) in enumerate(zip(found.images[:count], found.labels[:count])):
            home = folder / "mnist" / split / str(label)
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(home / f"{number:05}.png")
    (folder / "ag_news.csv").write_bytes(as_folder(None).read("ag_news/ag_news_csv/test.csv"))
    raw = load_breast_cancer()
    with open(folder / "cancer.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*raw.feature_names, "diagnosis"])
        writer.writerows([*row, raw.target_names[label]] for row, label in zip(raw.data.tolist(), raw.target))


def run(folder: Path) -> None:
    """The commands one after another, with what they print."""
    for command in COMMANDS:
        print(f"$ {command}", flush=True)
        subprocess.run(shlex.split(command), cwd=folder, check=True)
        print(flush=True)


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "own-data")
    where.mkdir(parents=True, exist_ok=True)
    write_files(where)
    if "--run" in sys.argv:
        run(where)
