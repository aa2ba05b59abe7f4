"""The attention kernel that can be differentiated twice."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

from torch.nn.attention import SDPBackend, sdpa_kernel

_lock = Lock()
_chosen: list[AbstractContextManager[None]] = []
_users = 0


@contextmanager
def math_attention() -> Iterator[None]:
    """Torch's plain attention while the block runs: the fused kernels have no second derivative.

    The choice holds for the whole process: the first thread that comes makes it, and the last one that goes takes it back.

    >>> import torch
    >>> with math_attention():
    ...     torch.backends.cuda.flash_sdp_enabled()
    False
    >>> torch.backends.cuda.flash_sdp_enabled()
    True
    """
    global _users
    with _lock:
        if not _users:
            _chosen.append(sdpa_kernel(SDPBackend.MATH))
            _chosen[-1].__enter__()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _chosen.pop().__exit__(None, None, None)
