"""The command `sparring`, before anything heavy is imported: Ctrl-C and SIGTERM end it with one line at any moment.

This module lies beside the package because importing the package imports torch, which takes seconds.
"""

import os
import signal
import sys
from types import FrameType


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, which the command line and the training loop know how to end with.

    Inside an import it could be swallowed or leave a module half made; there is nothing to save there, so we just leave.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"sparring: stopped; the same command goes on from the last checkpoint\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> int:
    """Run the command line with signals in hand from the start; returns the exit code."""
    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, interrupt)
    try:
        from sparring.lab.cli.main import main as command
        from sparring.lab.training.memory import keep_memory

        keep_memory()
        code = command()
    except KeyboardInterrupt:
        os.write(2, b"sparring: stopped; the same command goes on from the last checkpoint\n")
        code = 130
    for number in heard:
        signal.signal(number, signal.SIG_IGN)  # what is left is Python's own leave-taking
    return code


if __name__ == "__main__":
    sys.exit(main())
