"""The arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

TaskName = Annotated[
    str, typer.Argument(metavar="TASK", help="a name from `sparring tasks`, or a file of yours: ./mine.py")
]
Scale = Annotated[str, typer.Option(help="tiny (embedded data, seconds), small (real data, minutes) or paper")]
DataDir = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="folder of the real data sets; default $SPARRING_DATA")
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="where run folders go; finished runs found there are reused")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="change a setting, e.g. --set lr=0.01 (repeat for more)"),
]
Every = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="time between checkpoints; 0: after every update")]
Seeds = Annotated[str, typer.Option(help="how many seeds (3 means 0, 1, 2), or a list such as 0,7,11")]
Cores = Annotated[
    int | None, typer.Option(min=1, help="runs at once, one thread each; default all cores of the machine")
]
Board = Annotated[bool, typer.Option("--tensorboard", help="also write TensorBoard logs into the run folder")]
Device = Annotated[str, typer.Option(help="auto, cpu, or what torch.accelerator finds: cuda, cuda:1, mps, xpu, ...")]
