"""Commands under `torchrun`: one writer, one voice; a killed or hung rank ends the run."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rank_processes import free_port, rank_environment, start_ranks

# What the first rank says when another is lost, and how soon, in seconds.
LOST = re.compile(r"error: another rank (has ended|did not answer in time)")
SOON = 60


def torchrun(size: int, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    command += ["--master-port", str(free_port()), "-m", "hessian_surgery", *words]
    environment = {key: value for key, value in rank_environment(0, size, 0, **more).items() if "RANK" not in key}
    del environment["TORCHELASTIC_RUN_ID"], environment["MASTER_PORT"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def started(words: list[str], **more: str) -> list[subprocess.Popen[str]]:
    return start_ranks(2, ["-m", "hessian_surgery", *words], **more)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_one_rank_writes_and_prints(tmp_path):
    done = torchrun(2, "demo", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("540 held-out images") == done.stderr.count("1/1 accepted") == 1
    wanted = {"result.json", "history.jsonl", "model.safetensors", "patch.safetensors", "report.html"}
    assert wanted <= names(tmp_path / "run")
    assert not any(name.startswith(".") for name in names(tmp_path / "run"))


# What PyTorch's threads do now and then while the interpreter ends.
ABORTED = """
import atexit, ctypes, sys
ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)
atexit.register(print, "exit functions")
from hessian_surgery.cli import main, start
def end():
    {}
main.main = end
start.start()
"""


ENDS = {"sys.exit(0)": 0, "sys.exit(3)": 3, "sys.exit(143)": 143, "raise KeyboardInterrupt": 130}


@pytest.mark.parametrize(("end", "code"), ENDS.items())
def test_a_rank_keeps_its_exit_code_while_the_interpreter_ends(end, code):
    (rank,) = start_ranks(1, ["-c", ABORTED.format(end)])
    assert rank.communicate(timeout=60)[0] == "exit functions\n"
    assert rank.returncode == code


@pytest.mark.full
def test_a_run_that_is_not_accepted_is_whole(model, tmp_path):
    (tmp_path / "criteria.toml").write_text("[classes.9]\nminimum_accuracy = 0.999\n")
    words = ["--accept", str(tmp_path / "criteria.toml"), "--figures", str(tmp_path / "figures")]
    done = torchrun(2, "operate", *model, *words, "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr.count("not accepted: 9: ") == 1, done.stderr
    assert {"classes.svg", "classes.png"} <= names(tmp_path / "figures")


@pytest.mark.full
def test_bad_input_gives_one_line(tmp_path):
    done = torchrun(2, "operate", "--model", "resnet50", "--data", "nowhere:x", "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def model(_trained, tmp_path_factory):
    """The options for the demo's net and its data."""
    path = tmp_path_factory.mktemp("model") / "base.safetensors"
    save_file(_trained, path)
    return ["--model", "smallnet", "--checkpoint", str(path), "--data", "digits"]


@pytest.fixture(scope="module")
def command(model):
    """A run of the loop with four iterations, which leaves a state after each."""
    return ["operate", *model, "--preset", "loop", "--iterations", "4", "--hessian-samples", "32", "--spikes", "3"]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The folder of such a run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(started([*command, "--out", str(folder)]))
    return folder


def finish(ranks: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What ranks that must succeed say, on stdout and stderr."""
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return said


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ["spectrum", "--spikes", "3", "--vectors"],
        ["diagnose", "--spikes", "3"],
        ["compare", "--methods", "class-bias,operate,focal,bulk", "--epochs", "1", "--splits", "2"],
        ["operate", "--directions", "both", "--folds", "3"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_is_shared_by_two_ranks(words, model, tmp_path):
    first, second = finish(started([*words, *model, "--out", str(tmp_path / "run")]))
    assert first[0]
    assert second == ("", "")
    assert not any(name.startswith(".") or name == "unfinished.txt" for name in names(tmp_path / "run"))


@pytest.mark.full
def test_reproduce_is_shared_by_two_ranks(tmp_path):
    first, second = finish(started(["reproduce", "iterations", "--quick", "--out", str(tmp_path / "run")]))
    assert first[0]
    assert second == ("", "")


def strike(ranks: list[subprocess.Popen[str]], victim: int, number: int, after: str) -> tuple[list[str], float]:
    """Send a signal to a rank as soon as the first says something; what all said, and seconds."""
    said: list[str] = []
    for line in ranks[0].stderr:
        said.append(line)
        if after in line:
            break
    ranks[victim].send_signal(number)
    begun = time.monotonic()
    others = [rank for i, rank in enumerate(ranks) if i != victim]
    readers = [threading.Thread(target=lambda rank=rank: said.append(rank.stderr.read())) for rank in ranks]
    for reader in readers:
        reader.start()
    for rank in others:
        assert rank.wait(timeout=SOON) == 1, "".join(said)
    seconds = time.monotonic() - begun
    ranks[victim].kill()
    for reader in readers:
        reader.join()
    return said, seconds


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("after", ["deciding on", "spikes", "sensitivity", "  1/4", "  3/4", "report"])
def test_a_killed_rank_ends_the_run_which_can_be_resumed(victim, after, command, whole, tmp_path):
    ranks = started([*command, "--out", str(tmp_path / "killed")])
    said, _ = strike(ranks, victim, signal.SIGKILL, after)
    told = "".join(said)
    assert LOST.search(told) or "error: rank 1: another rank" in told
    assert "Traceback" not in told
    finish(started([*command, "--out", str(tmp_path / "killed"), "--resume"]))
    for name in ("model.safetensors", "patch.safetensors", "predictions.safetensors"):
        assert (whole / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert names(whole) == names(tmp_path / "killed")


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_a_hung_rank_ends_the_run_in_time(victim, command, tmp_path):
    ranks = started([*command, "--out", str(tmp_path / "run")], HESSIAN_SURGERY_TIMEOUT="10")
    said, seconds = strike(ranks, victim, signal.SIGSTOP, "  1/4")
    assert "another rank did not answer in time" in "".join(said)
    assert seconds < 30


@pytest.mark.full
def test_ranks_with_other_weights_are_refused(command, tmp_path, _trained):
    other = tmp_path / "other.safetensors"
    save_file({name: t + 1 if t.dtype == torch.float32 else t for name, t in _trained.items()}, other)
    port = free_port()
    words = ["-m", "hessian_surgery", *command, "--out", str(tmp_path / "run")]
    swapped = [str(other) if word.endswith("base.safetensors") else word for word in words]
    ranks = [
        subprocess.Popen([sys.executable, *own], env=rank_environment(i, 2, port), stderr=subprocess.PIPE, text=True)
        for i, own in enumerate((words, swapped))
    ]
    said = ranks[0].communicate(timeout=SOON)[1]
    assert [rank.wait(timeout=SOON) for rank in ranks] == [2, 2]
    assert "rank 1 has other weights or other data than rank 0" in said
