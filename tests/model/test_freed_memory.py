"""Freed memory is kept between passes on a CPU, and the usual rules come back."""

import platform
import resource
import sys

import pytest
import torch

from hessian_surgery.model.freed_memory import kept_for_passes

CPU = torch.device("cpu")
LARGE = 25_000_000  # numbers: 100 MB, which the C library does not keep by itself

glibc = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)


def new_pages():
    """How many pages the system hands out while a large block is made and freed ten times."""
    torch.ones(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(LARGE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_memory_is_kept_inside_and_not_after():
    usual = new_pages()
    with kept_for_passes(CPU):
        kept = new_pages()
        with kept_for_passes(CPU):
            pass
        still = new_pages()
    assert kept < usual / 2
    assert still < usual / 2
    assert new_pages() > 0.8 * usual


@glibc
def test_an_error_inside_brings_back_the_usual_rules():
    usual = new_pages()
    with pytest.raises(ValueError, match="inside"), kept_for_passes(CPU):
        raise ValueError("inside")
    assert new_pages() > 0.8 * usual


@glibc
def test_a_gpu_changes_nothing_on_the_host():
    usual = new_pages()
    with kept_for_passes(torch.device("cuda")):
        assert new_pages() > 0.8 * usual
