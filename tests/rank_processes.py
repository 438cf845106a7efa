"""Start ranks as processes, as `torchrun` does, and collect what a function returns on each."""

import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hessian_surgery.distributed import joined_ranks

HERE = Path(__file__)
SOURCE = str(HERE.parents[1] / "src")


def rank_environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """What `torchrun` tells a process on one machine."""
    given = {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "PYTHONPATH": os.pathsep.join([SOURCE, str(HERE.parent)]),
    }
    return {**os.environ, **given, **more}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def start_ranks(size: int, words: list[str], port: int | None = None, **more: str) -> list[subprocess.Popen[str]]:
    """Start `python words…` as so many ranks."""
    port = port or free_port()
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env=rank_environment(rank, size, port, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def run_ranks(size: int, function: str, folder: Path, *arguments: str) -> list[Any]:
    """What `module:function` returns on each of so many ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = start_ranks(size, [str(HERE), function, str(folder), *arguments])
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    with joined_ranks() as ranks:
        found = getattr(import_module(module), name)(*sys.argv[3:])
    torch.save(found, Path(sys.argv[2]) / f"{ranks.rank}.pt")
