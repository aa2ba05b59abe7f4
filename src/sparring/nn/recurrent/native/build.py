"""Compile a C source on first use where there is a compiler, keep the result in a cache, never insist.

`SPARRING_NATIVE=0` switches native code off; `SPARRING_CACHE` moves the cache (default: the user's cache folder).
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

log = logging.getLogger("sparring")

SOURCE = Path(__file__).parent / "recurrent.c"
# No -ffast-math: infinities and NaN must pass through as they do in torch.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_lock = threading.Lock()


def enabled() -> bool:
    """False when the environment says `SPARRING_NATIVE=0`."""
    return os.environ.get("SPARRING_NATIVE", "1") != "0"


def library() -> ctypes.CDLL | None:
    """The compiled library, built once per process at most; None (logged) where that is not possible."""
    with _lock:
        return _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        loaded = ctypes.CDLL(str(build()))
    except (OSError, subprocess.SubprocessError) as reason:
        log.info("native recurrent kernel not available, plain PyTorch runs instead: %s", reason)
        return None
    for name in ("sparring_pack", "sparring_forward", "sparring_backward"):
        getattr(loaded, name).restype = None
    return loaded


def cache_folder() -> Path:
    """Where compiled libraries are kept between processes."""
    home = os.environ.get("SPARRING_CACHE")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparring"


def build(folder: Path | None = None) -> Path:
    """Path of the compiled library: taken from the cache, or compiled into it.

    The name carries a hash of the source, the flags, the compiler and the processor. The file is written beside its
    place and renamed, so that another process sees all of it or nothing. A cache that cannot be written is replaced by a
    private temporary folder.
    """
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler found")
    key = hashlib.sha256("\0".join([SOURCE.read_text(), *FLAGS, _version(compiler), _processor()]).encode()).hexdigest()
    folder = folder or cache_folder()
    target = folder / f"recurrent-{key[:24]}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _compile(compiler, target)
    except OSError as reason:
        private = Path(tempfile.mkdtemp(prefix="sparring-"))
        log.info("cache %s cannot be written (%s), building in %s", folder, reason, private)
        return _compile(compiler, private / target.name)


def _compile(compiler: str, target: Path) -> Path:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False) as half_written:
        pass
    try:
        command = [compiler, *FLAGS, str(SOURCE), "-o", half_written.name]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(half_written.name, target)
    finally:
        Path(half_written.name).unlink(missing_ok=True)
    log.info("compiled %s", target)
    return target


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=30).stdout


def _processor() -> str:
    """What `-march=native` looks at: model and instruction sets of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "".join(
        dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))
    )
