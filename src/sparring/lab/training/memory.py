"""Memory that stays with a process.

A training step frees what it used and asks for the same again in the next one. The C library hands large blocks back to
the system at once, which then has to find, clear and map every page of them anew, step after step.
"""

import ctypes

# Of glibc's malloc.h. Larger blocks than these still go back to the system as soon as they are free.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE = 1 << 30


def keep_memory() -> bool:
    """From now on freed memory stays with this process, for its next step; False where the C library cannot be told.

    It cannot be taken back, so it is for processes that do nothing else than train.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return all([mallopt(M_MMAP_THRESHOLD, LARGE), mallopt(M_TRIM_THRESHOLD, LARGE)])
