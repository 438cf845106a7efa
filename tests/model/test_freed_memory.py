"""Freed memory is kept between passes on a CPU, and the usual rules come back."""

import json
import platform
import subprocess
import sys

import pytest

# In a process of its own: only the main thread's memory can be kept, and other tests leave some.
SCRIPT = """
import json, resource, torch
from contextlib import suppress
from hessian_surgery.model.freed_memory import kept_for_passes

def new_pages():
    torch.ones(25_000_000)  # 100 MB, which the C library does not keep by itself
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = {"usual": new_pages()}
with kept_for_passes(torch.device("cpu")):
    found["kept"] = min(new_pages() for _ in range(3))  # at first the kept memory has to grow
    with kept_for_passes(torch.device("cpu")):
        pass
    found["still kept"] = min(new_pages() for _ in range(3))
found["after"] = new_pages()
with suppress(ValueError), kept_for_passes(torch.device("cpu")):
    raise ValueError
found["after an error"] = new_pages()
with kept_for_passes(torch.device("cuda")):
    found["on a GPU"] = new_pages()
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_is_kept_inside_and_not_after():
    printed = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    found = json.loads(printed)
    usual = found.pop("usual")
    kept = {found.pop("kept"), found.pop("still kept")}
    assert max(kept) < usual / 2
    assert min(found.values()) > 0.8 * usual, found
