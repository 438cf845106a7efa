"""Freed memory is kept between passes on a CPU, and the usual rules come back."""

import json
import platform
import subprocess
import sys

import pytest
import torch

from hessian_surgery.model import freed_memory
from hessian_surgery.model.freed_memory import KEEP, USUAL, kept_for_passes

CPU = torch.device("cpu")

# In a process of its own: only the main thread's memory can be kept, and other tests leave some.
SCRIPT = """
import json, resource, torch
from hessian_surgery.model.freed_memory import kept_for_passes

def new_pages():
    torch.ones(25_000_000)  # 100 MB, which the C library does not keep by itself
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = {"usual": new_pages()}
with kept_for_passes(torch.device("cuda")):
    found["on a GPU"] = new_pages()
with kept_for_passes(torch.device("cpu")):
    with kept_for_passes(torch.device("cpu")):
        pass
    found["kept"] = min(new_pages() for _ in range(5))  # at first the kept memory has to grow
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_is_kept_for_a_cpu():
    printed = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    found = json.loads(printed)
    assert found["kept"] < found["usual"] / 2
    assert found["on a GPU"] > 0.8 * found["usual"]


def test_the_usual_rules_come_back(monkeypatch):
    """After the outermost block, and after an error in it."""
    given = []
    monkeypatch.setattr(freed_memory, "_set", given.append)
    with kept_for_passes(CPU), kept_for_passes(CPU):
        assert given == [KEEP]
    assert given == [KEEP, USUAL]
    with pytest.raises(ValueError, match="inside"), kept_for_passes(CPU):
        raise ValueError("inside")
    assert given == [KEEP, USUAL] * 2
