"""Start a script on several processes, and processes that are to be killed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PATHS = f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\nimport torch\ntorch.set_num_threads(1)\n"


def torchrun(script: Path, *words: str, processes: int = 2) -> str:
    """What a script printed on so many processes; an error shows its last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={port}"]
    done = subprocess.run(
        [*command, str(script), *words], capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
