"""Downloads that survive dropped lines, wrong bytes, full disks and being killed: a file is whole or not there."""

import errno
import fcntl
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from .errors import DataError

Progress = Callable[[str, int, int | None], None]
CHUNK = 1 << 16
AGENT = {"User-Agent": "sparring-data", "Accept-Encoding": "identity"}


class Dropped(Exception):
    """A failure of the line or the server that another attempt may mend.

    Args:
        reason: What happened.
        validator: The server's name for the version whose first bytes were received, if it gave one.
    """

    def __init__(self, reason: str, validator: str | None = None) -> None:
        super().__init__(reason)
        self.validator = validator


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(
    urls: str | Sequence[str],
    to: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Download one file to `to`, which appears only once it is complete and its SHA-256 is right.

    Bytes gather in `to` + `.part`. A dropped line is resumed with a Range request, in this call or, when the SHA-256 is
    known, in a later one; a part whose sum turns out wrong is thrown away and fetched anew. Two processes cannot fetch
    the same file at once.

    Args:
        urls: One address, or several mirrors tried in turn.
        to: The finished file.
        sha256: Expected sum; None when none is published (the length is still checked).
        progress: Called as `progress(file name, bytes so far, total or None)`.
        attempts: How many requests to make in all, over the mirrors.
        pause: Seconds before the first retry, doubled each time.
        timeout: Seconds without a byte before a request counts as dropped.
    """
    mirrors = [urls] if isinstance(urls, str) else list(urls)
    for url in mirrors:
        if not url.startswith(("http://", "https://")):
            raise DataError(f"cannot be downloaded; the address {url!r} is neither http nor https", to.name)
    part = to.with_name(to.name + ".part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "ab") as sink:
            try:
                fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"is being downloaded by another process (which holds {part})", to) from None
            if to.is_file() and not (sha256 and sha256_of(to) != sha256):
                part.unlink(missing_ok=True)  # another process finished it while we were on our way
                return to
            _attempts(mirrors, part, sink, to, sha256, progress, attempts, pause, timeout)
            os.replace(part, to)
        _sync_folder(to.parent)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left on the disk; free some and run again, {part.name} is kept", to) from error
        raise DataError(f"cannot be written ({error.strerror or error})", to) from error
    return to


def _attempts(
    mirrors: list[str],
    part: Path,
    sink: BinaryIO,
    to: Path,
    sha256: str | None,
    progress: Progress | None,
    attempts: int,
    pause: float,
    timeout: float,
) -> None:
    """Request until the part is whole; raises `DataError` when attempts run out."""
    validator: str | None = None  # the server's name for the version we hold part of
    if sha256 is None:
        sink.truncate(0)  # left by another process, of a version nobody can check
    reasons: list[str] = []
    for attempt in range(attempts):
        url = mirrors[attempt % len(mirrors)]
        if attempt:
            time.sleep(min(pause * 2 ** (attempt - 1), 30.0))
        try:
            validator = _request(url, sink, to, validator, sha256 is not None, progress, timeout)
        except Dropped as error:
            reasons.append(f"{url}: {error}")
            validator = error.validator or validator
            continue
        sink.flush()
        os.fsync(sink.fileno())
        if sha256 is None:
            return
        seen = sha256_of(part)
        if seen == sha256:
            return
        reasons.append(f"{url}: its SHA-256 is {seen}, expected {sha256}, so the bytes were thrown away")
        sink.truncate(0)
        validator = None
    raise DataError(f"could not be downloaded after {attempts} attempts ({reasons[-1]})", to.name)


def _request(
    url: str,
    sink: BinaryIO,
    to: Path,
    validator: str | None,
    checked: bool,
    progress: Progress | None,
    timeout: float,
) -> str | None:
    """One request that continues where the part ends; returns the server's validator, raises `Dropped` if cut off."""
    start = os.fstat(sink.fileno()).st_size
    if start and not checked and validator is None:
        sink.truncate(0)
        start = 0
    request = urllib.request.Request(url, headers=dict(AGENT))
    if start:
        request.add_header("Range", f"bytes={start}-")
        if validator:
            request.add_header("If-Range", validator)
    keep: str | None = None
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            if reply.status != 206 or not str(reply.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
                if reply.status == 206:
                    raise Dropped(f"answered with the range {reply.headers.get('Content-Range')}, asked from {start}")
                sink.truncate(0)
                start = 0
            length = reply.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            free = shutil.disk_usage(to.parent).free
            if total is not None and total - start > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            etag = reply.headers.get("ETag")
            keep = etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified")
            got = _copy(reply, sink, to.name, start, total, progress)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # the part is as long as the file, or longer: let its sum decide, else start over
                if checked and start:
                    return validator
                sink.truncate(0)
            raise Dropped(f"HTTP {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise Dropped(str(getattr(error, "reason", error)) or type(error).__name__, keep) from error
    if total is not None and got != total:
        raise Dropped(f"the line dropped after {got:,} of {total:,} bytes", keep)
    return keep


def _copy(
    reply: http.client.HTTPResponse, sink: BinaryIO, name: str, done: int, total: int | None, progress: Progress | None
) -> int:
    while True:
        if progress is not None:
            progress(name, done, total)
        chunk = reply.read1(CHUNK)
        if not chunk:
            sink.flush()
            return done
        sink.write(chunk)
        done += len(chunk)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
