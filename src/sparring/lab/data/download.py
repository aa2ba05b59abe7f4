"""Downloads that survive dropped lines, wrong bytes, full disks and being killed: a file is whole or not there."""

import errno
import fcntl
import hashlib
import http.client
import os
import shutil
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .errors import DataError

Progress = Callable[[str, int, int | None], None]
CHUNK = 1 << 16
LIMIT = 4 << 30  # no published file we fetch is larger
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


class Redirections(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but only to http and https, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        safe = ("https://",) if req.full_url.startswith("https://") else ("http://", "https://")
        if not newurl.lower().startswith(safe):
            raise DataError(
                f"{req.full_url} leads to {newurl!r:.200}; refused, because that is not {' or '.join(safe)}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opener() -> urllib.request.OpenerDirector:
    """What opens addresses: http and https through the proxies of the environment, no ftp, no files."""
    made = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        Redirections(),
        urllib.request.HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made


OPENER = opener()


def _part(path: Path) -> BinaryIO:
    """The file that gathers the bytes; a link or anything else that is not a plain file is refused."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise DataError("is not a plain file; refused, remove it and run again", path) from error
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise DataError("is not a plain file of its own; refused, remove it and run again", path)
    return os.fdopen(handle, "ab")


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
    limit: int = LIMIT,
) -> Path:
    """Download one file to `to`, which appears only once it is complete and its SHA-256 is right.

    Only http and https are followed, wherever a redirection leads, and never from https back to http. Bytes gather in
    `to` + `.part`, which must be a plain file. A dropped line is resumed with a Range request, in this call or, when the SHA-256 is
    known, in a later one; a part whose sum turns out wrong is thrown away and fetched anew. Two processes cannot fetch
    the same file at once.

    Args:
        urls: One address, or several mirrors tried in turn.
        to: The finished file.
        sha256: Expected sum; None when none is published. Then the length is checked, and a server that does not tell
            the length is refused.
        progress: Called as `progress(file name, bytes so far, total or None)`.
        attempts: How many requests to make in all, over the mirrors.
        pause: Seconds before the first retry, doubled each time.
        timeout: Seconds without a byte before a request counts as dropped.
        limit: Most bytes to take, whatever the server says.
    """
    mirrors = [urls] if isinstance(urls, str) else list(urls)
    for url in mirrors:
        if not url.startswith(("http://", "https://")):
            raise DataError(f"cannot be downloaded; the address {url!r} is neither http nor https", to.name)
    part = to.with_name(to.name + ".part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with _part(part) as sink:
            try:
                fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"is being downloaded by another process (which holds {part})", to) from None
            if to.is_file() and not (sha256 and sha256_of(to) != sha256):
                part.unlink(missing_ok=True)  # another process finished it while we were on our way
                return to
            _attempts(mirrors, part, sink, to, sha256, progress, attempts, pause, timeout, limit)
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
    limit: int,
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
            validator = _request(url, sink, to, validator, sha256 is not None, progress, timeout, limit)
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
    limit: int,
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
        with OPENER.open(request, timeout=timeout) as reply:
            if reply.status != 206 or not str(reply.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
                if reply.status == 206:
                    raise Dropped(f"answered with the range {reply.headers.get('Content-Range')}, asked from {start}")
                sink.truncate(0)
                start = 0
            length = reply.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            if total is None and not checked and not getattr(reply, "chunked", False):
                raise DataError(f"{url} does not say how long the file is, and there is no SHA-256 to check", to.name)
            if total is not None and total > limit:
                raise DataError(
                    f"{url} offers {total:,} bytes; refused, because no more than {limit:,} belong there", to.name
                )
            free = shutil.disk_usage(to.parent).free
            if total is not None and total - start > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            etag = reply.headers.get("ETag")
            keep = etag if etag and not etag.startswith("W/") else reply.headers.get("Last-Modified")
            got = _copy(reply, sink, to.name, start, total, progress, limit)
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
    reply: Any, sink: BinaryIO, name: str, done: int, total: int | None, progress: Progress | None, limit: int
) -> int:
    while True:
        if progress is not None:
            progress(name, done, total)
        chunk = reply.read1(CHUNK)
        if not chunk:
            sink.flush()
            return done
        done += len(chunk)
        if done > limit or (total is not None and done > total):
            sink.truncate(0)
            raise DataError(f"sent more than {min(limit, total or limit):,} bytes; refused and thrown away", name)
        sink.write(chunk)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
