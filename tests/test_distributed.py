"""Several ranks find what one process finds; each holds its share; a lost rank ends the run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rank_processes import run_ranks, start_ranks
from rank_work import everything, most, small_resnet

# What is the same bit for bit however many ranks there are.
EXACT = (
    "logits",
    "one batch",
    "one image",
    "features",
    "random images",
    "counts",
    "accepted",
    "class accuracies",
    "verdict",
)
# What tells of the work itself.
OF_WORK = ("large collectives", "bytes")


def train(net: torch.nn.Module, parts, path: Path) -> str:
    """Train a net a little, and write its weights."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(20):
        for chosen in torch.arange(len(parts.training)).split(62):
            optimizer.zero_grad()
            logits = net(parts.training.fetch(chosen))
            torch.nn.functional.cross_entropy(logits, parts.training.labels[chosen]).backward()
            optimizer.step()
    torch.save(net.state_dict(), path)
    return str(path)


@pytest.fixture
def weights(tmp_path, digits_parts, _trained):
    """The file with the trained weights of a net."""

    def made(name: str) -> str:
        if name == "resnet":
            torch.manual_seed(0)
            return train(small_resnet(10), digits_parts, tmp_path / "weights.pt")
        torch.save(_trained, tmp_path / "weights.pt")
        return str(tmp_path / "weights.pt")

    return made


def check_ranks(size: int, net: str, weights: str, folder: Path, work: Callable[..., dict[str, Any]]) -> None:
    alone = work(net, weights)
    found = run_ranks(size, f"rank_work:{work.__name__}", folder, net, weights)
    for name, one in alone.items():
        if not name.startswith(OF_WORK):
            for other in found:
                same(name, found[0][name] if name == "random images" else one, other[name])
    for of_rank in found:
        assert of_rank["large collectives of a product"] == ["all_reduce"]
        often, kinds = of_rank["large collectives of a step"]
        assert kinds == ["all_gather", "reduce_scatter"]
        # The two halves of one all-reduce; and none more but a last vector.
        assert often == pytest.approx(2, abs=0.1)
        share = of_rank["bytes of the basis"] / alone["bytes of the basis"]
        assert share == pytest.approx(1 / size, rel=0.1)
        assert of_rank["bytes planned"] == 0
    assert alone["large collectives of a product"] == []
    assert alone["large collectives of a step"] == [0, []]


def same(name: str, one, other) -> None:
    if not isinstance(one, Tensor):
        assert one == other, name
    elif name.rpartition(": ")[2] in EXACT:
        assert torch.equal(one, other), name
    else:
        scale = float(one.abs().max())
        tolerance = 1e-3 if name == "in half precision" else 1e-5
        torch.testing.assert_close(other, one, rtol=tolerance, atol=1e-6 * scale, msg=lambda text: f"{name}: {text}")


def test_two_ranks_find_what_one_process_finds(weights, tmp_path):
    check_ranks(2, "digits", weights("digits"), tmp_path, most)


@pytest.mark.full
@pytest.mark.parametrize("net", ["digits", "resnet"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_so_many_ranks_find_what_one_process_finds(size, net, weights, tmp_path):
    check_ranks(size, net, weights(net), tmp_path, everything)


CLOSING = """
import os, sys, time
import torch
import hessian_surgery as hs

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
with hs.joined_ranks() as ranks:
    import torch._dynamo  # as optimizers and compilers do
    if ranks.writes:
        time.sleep(1)
        open(sys.argv[1], "w").close()
print(threads() - before, os.path.exists(sys.argv[1]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads cannot be counted")
def test_ranks_close_the_group_together_and_leave_no_thread(tmp_path):
    ranks = start_ranks(2, ["-c", CLOSING, str(tmp_path / "done")])
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["0 True\n", "0 True\n"]
