"""The attention kernel that can be differentiated twice."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

from torch.nn.attention import SDPBackend, sdpa_kernel

_lock = Lock()
_chosen: list[AbstractContextManager[None]] = []


@contextmanager
def math_attention() -> Iterator[None]:
    """Torch's plain attention while the block runs: the fused kernels have no second derivative.

    The choice holds for the whole process. Whichever thread goes takes back the latest choice, so the last one takes back the first.

    >>> import torch
    >>> with math_attention():
    ...     torch.backends.cuda.flash_sdp_enabled()
    False
    >>> torch.backends.cuda.flash_sdp_enabled()
    True
    """
    choice = sdpa_kernel(SDPBackend.MATH)
    with _lock:
        choice.__enter__()
        _chosen.append(choice)
    try:
        yield
    finally:
        with _lock:
            _chosen.pop().__exit__(None, None, None)
