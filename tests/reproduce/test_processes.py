"""Several processes that share the jobs: same results, each job once, and errors in one line."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hessian_surgery.cli import reproduce
from hessian_surgery.errors import InUse
from hessian_surgery.files import making
from hessian_surgery.ranks import Ranks
from hessian_surgery.reproduce.catalogue import choose_items
from hessian_surgery.reproduce.jobs import Reproduction, jobs_of, measure, open_benches
from hessian_surgery.reproduce.starts import QUICK
from hessian_surgery.sealed import _timeless, read_sealed

pytestmark = pytest.mark.usefixtures("own_folder")

NAMES = ("main", "iterations")
QUICKLY = ("--quick", "--splits", "2")


def asked(folder, processes):
    return Reproduction(dict.fromkeys(("cifar10", "skin"), QUICK), torch.device("cpu"), folder, 1, True, "", processes)


def found(folder, names=NAMES):
    return {name: _timeless(json.loads((folder / f"{name}.json").read_text())["measured"]) for name in names}


@pytest.fixture
def one_thread():
    """As each of two processes has: with more of them sums are rounded in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_processes_find_what_one_finds(run, tmp_path):
    assert run("reproduce", "main", *QUICKLY, "--out", "one") == 0
    assert run("reproduce", "main", *QUICKLY, "--processes", "2", "--out", "two") == 0
    assert found(tmp_path / "one", ["main"]) == found(tmp_path / "two", ["main"])
    content = json.loads((tmp_path / "two/main.json").read_text())
    assert content["processes"] == 2
    assert content["environment"]["device"] == "cpu"
    assert "--processes 2`" in (tmp_path / "two/main.md").read_text()
    assert not list((tmp_path / "two").rglob(".*"))
    (noted,) = read_sealed(tmp_path / "two/time.json", "out")["commands"]
    assert (noted["jobs"], noted["processes"]) == (2, 2)
    assert noted["seconds"] > 0


def test_time_adds_up_over_commands(run, tmp_path):
    for splits in ("1", "1", "2"):
        assert run("reproduce", "main", "--quick", "--splits", splits, "--out", "again") == 0
    noted = read_sealed(tmp_path / "again/time.json", "out")["commands"]
    assert [own["jobs"] for own in noted] == [1, 1]


def test_trainings_come_first_for_several_processes(tmp_path):
    items = choose_items(["main", "skin", "comparison"])
    names = [job.item.name for job in jobs_of(items, asked(tmp_path, 2))]
    assert names == ["comparison", "skin", "main"]
    assert [job.item.name for job in jobs_of(items, asked(tmp_path, 1))] == ["main", "comparison", "skin"]


def test_what_another_process_is_at_is_left_to_it(tmp_path):
    given = asked(tmp_path, 1)
    (job,) = jobs_of(choose_items(["baseline"]), given)
    bench = open_benches([job], given, None)["cifar10"]
    with making(job.path), pytest.raises(InUse, match="another process is writing"):
        measure(job, bench, 1)
    measure(job, bench, 1)
    before = job.path.read_bytes()
    measure(job, bench, 1)
    assert job.path.read_bytes() == before


def test_an_error_in_a_process_is_one_line(run, capsys, tmp_path):
    assert run("reproduce", "main", *QUICKLY, "--out", "again") == 0
    for path in (tmp_path / "again/shared/cifar10").glob("loop-*.json"):
        path.write_text(path.read_text().replace("0.", "0.1", 1))
    assert run("reproduce", *NAMES, *QUICKLY, "--processes", "2", "--out", "again") == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(said) == 1
    assert "is damaged: its hash is another; remove it to have it made again" in said[0]
    assert not multiprocessing.active_children()


def test_ranks_have_no_more_processes(run, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "present", lambda: Ranks(0, 2, joined=True))
    assert run("reproduce", "main", "--quick", "--processes", "2", "--out", "again") == 2
    assert "--processes: torchrun has started several already; give 1" in capsys.readouterr().err


def workers_of(run: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    found = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    assert len(found) == 2
    return found


def started(*more: str) -> subprocess.Popen[str]:
    """A run of eight jobs in two processes; it is at work when this returns."""
    words = ("reproduce", "main", "iterations", "p-rule", *QUICKLY, "--processes", "2", "--out", "again")
    run = subprocess.Popen(
        [sys.executable, "-m", "hessian_surgery", *words, *more],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while run.poll() is None and not list(Path("again").glob("*/*-split-*.json")):
        time.sleep(0.1)
    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("worker", 1, "error: one of the processes has ended with code -9; give the same command again to go on"),
        (signal.SIGINT, 130, "interrupted; the same command goes on with what is left"),
        (signal.SIGTERM, 143, "interrupted; the same command goes on with what is left"),
    ],
)
def test_a_run_that_was_ended_goes_on(run, tmp_path, ending, code, says):
    running = started()
    workers = workers_of(running)
    if ending == "worker":
        os.kill(workers[0], signal.SIGKILL)
    elif ending == signal.SIGINT:
        os.killpg(running.pid, ending)
    else:
        running.send_signal(ending)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == code
    assert says in said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert run("reproduce", "main", "iterations", "p-rule", *QUICKLY, "--processes", "2", "--out", "again") == 0
    assert run("reproduce", "main", "iterations", "p-rule", *QUICKLY, "--out", "whole") == 0
    names = ("main", "iterations", "p-rule")
    assert found(tmp_path / "again", names) == found(tmp_path / "whole", names)


@pytest.mark.full
def test_processes_end_with_the_one_that_started_them():
    running = started()
    workers = workers_of(running)
    running.kill()
    running.communicate(timeout=60)
    until = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
