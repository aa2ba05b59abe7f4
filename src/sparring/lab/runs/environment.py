"""What someone else needs to repeat a run: versions, machine, commit, command.

>>> sorted(describe())[:3]
['commit', 'cores', 'cpu']
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("sparring", "torch", "accelerate", "numpy", "scikit-learn", "transformers", "optuna", "safetensors")


def installed(package: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout this file lives in, with a + when files differ from it; None for an installed copy."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno", "--", "."], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def processor() -> str:
    """The CPU's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def command() -> str:
    """The command line as it was typed, ready to paste."""
    return shlex.join(["sparring", *sys.argv[1:]])


def describe() -> dict[str, Any]:
    """Versions of what matters, the machine and the commit."""
    return {
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := installed(name))},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor(),
        "cores": os.cpu_count(),
        "commit": commit(),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What decides the last digits and is not as it was, in words; nothing where all is.

    >>> changes({"python": "3.11.2", "packages": {"torch": "2.6"}}, {"python": "3.11.2", "packages": {"torch": "2.7"}})
    'torch 2.6 -> 2.7'
    """
    old = {"python": before.get("python"), "cpu": before.get("cpu"), **before.get("packages", {})}
    new = {"python": now.get("python"), "cpu": now.get("cpu"), **now.get("packages", {})}
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in names)
