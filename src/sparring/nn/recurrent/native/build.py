"""Compile a C source on first use where there is a compiler, keep the result in a cache, never insist.

`SPARRING_NATIVE=0` switches native code off; `SPARRING_CACHE` moves the cache (default: the user's cache folder); `CC`
is the compiler, with arguments if need be.

Code is loaded from the cache only if nobody else can have put it there (the folder and the file belong to this user or
to root, and others may not write them) and if it is what was compiled (the file's name holds its SHA-256).
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
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
        loaded = _load()
        for name in ("sparring_pack", "sparring_forward", "sparring_backward"):
            getattr(loaded, name).restype = None
    except subprocess.CalledProcessError as reason:
        said = (reason.stderr or b"").decode(errors="replace").strip().splitlines()
        words = said[0] if said else f"exit code {reason.returncode}"
        log.warning("native recurrent kernel does not compile, plain PyTorch runs instead (slower): %s", words)
        return None
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as reason:
        log.info("native recurrent kernel not available, plain PyTorch runs instead (slower): %s", reason)
        return None
    return loaded


def cache_folder() -> Path:
    """Where compiled libraries are kept between processes."""
    home = os.environ.get("SPARRING_CACHE")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparring" / "native"


def _load() -> ctypes.CDLL:
    """The library from the cache, or where that cannot be used from a private folder that is gone once it is loaded."""
    folder, recipe = cache_folder(), _recipe()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not ours(folder.stat()):
            raise PermissionError("it belongs to somebody else, or others may write it; chmod go-w makes it safe")
        return ctypes.CDLL(str(build(folder, recipe)))
    except OSError as reason:  # also a folder that cannot be written and holds nothing for us, or something damaged
        log.warning("cache %s is not used (%s); the native kernel is compiled anew for this process", folder, reason)
    with tempfile.TemporaryDirectory(prefix="sparring-") as private:
        return ctypes.CDLL(str(build(Path(private), recipe)))


def ours(found: os.stat_result) -> bool:
    """Whether nobody but this user and root can have written a file or folder."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _recipe() -> tuple[list[str], str]:
    """The compiler, and a hash of the source, the flags, the compiler and the processor."""
    compiler = _compiler()
    parts = [SOURCE.read_text(), *FLAGS, *compiler, _version(compiler), _processor()]
    return compiler, hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def build(folder: Path, recipe: tuple[list[str], str] | None = None) -> Path:
    """Path of the compiled library in `folder`: found there whole, or compiled into it.

    The name carries the recipe's hash, then the SHA-256 of the library. The file is written beside its place, brought to the
    disk and renamed: another process sees all of it or nothing.
    """
    compiler, key = recipe or _recipe()
    for found in sorted(folder.glob(f"recurrent-{key}-*.so")):
        if _whole(found):
            return found
        log.warning("%s is damaged or not ours; it is compiled again", found)
        found.unlink(missing_ok=True)
    return _compile(compiler, folder, key)


def _whole(path: Path) -> bool:
    """Whether a file is ours and holds what its name says."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or not ours(found):
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == path.stem.rpartition("-")[2]


def _compile(compiler: list[str], folder: Path, key: str) -> Path:
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as half_written:
        pass
    try:
        command = [*compiler, *FLAGS, str(SOURCE), "-o", half_written.name]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.chmod(half_written.name, 0o600)
        with open(half_written.name, "rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        target = folder / f"recurrent-{key}-{digest}.so"
        os.replace(half_written.name, target)
    finally:
        Path(half_written.name).unlink(missing_ok=True)
    log.info("compiled %s", target)
    return target


def _compiler() -> list[str]:
    """The compiler and the arguments that come with it.

    >>> os.environ["CC"] = "gcc -m64"
    >>> _compiler()
    ['gcc', '-m64']
    >>> del os.environ["CC"]
    """
    chosen = shlex.split(os.environ.get("CC") or "")
    if chosen:
        return chosen
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        raise FileNotFoundError("no C compiler found")
    return [found]


def _version(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True, timeout=30).stdout


def _processor() -> str:
    """What `-march=native` looks at: model and instruction sets of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "".join(
        dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))
    )
