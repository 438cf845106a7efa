"""Faults at every moment: afterwards the same command gives what it would have given without."""

import multiprocessing
import os
import random
import shutil
import signal
import sys

import pytest
import torch

import faults
from hessian_surgery.cli.main import main
from hessian_surgery.files import claimed
from hessian_surgery.weights.tensorfile import save_tensors

MODEL = ["--model", "faults:net", "--checkpoint", "base.safetensors", "--training-data", "faults:training"]
PARTS = [*MODEL, "--calibration-data", "faults:calibration"]
ALL = [*PARTS, "--heldout-data", "faults:heldout"]
SHORT = ["--splits", "2", "--epochs", "2", "--budgets", "0,0.2pp"]
COMMANDS = {
    "operate": ["operate", *ALL, "--budget", "0.02", "--out", "out"],
    "loop": ["operate", *ALL, "--preset", "loop", "--iterations", "2", "--hessian-samples", "32", "--out", "out"],
    "folds": ["operate", *PARTS, "--folds", "2", "--iterations", "1", "--out", "out"],
    "compare": ["compare", *ALL, *SHORT, "--methods", "class-bias,focal,operate+finetune", "--out", "out"],
    "compare-operations": ["compare", *ALL, *SHORT, "--methods", "operate,loop", "--out", "out"],
    "diagnose": ["diagnose", *PARTS, "--out", "out"],
    "spectrum": ["spectrum", *MODEL, "--vectors", "--density-steps", "4", "--probes", "1", "--out", "out"],
    "study": ["study", "stability", *MODEL, "--out", "out"],
    "train": [
        *("train", "--model", "faults:net", "--training-data", "faults:training"),
        *("--heldout-data", "faults:heldout", "--epochs", "2", "--out", "out/net.safetensors"),
    ],
    "apply": ["apply", "base.safetensors", "patch.safetensors", "--out", "out/patched.safetensors"],
    "revert": ["revert", "patched.safetensors", "patch.safetensors", "--out", "out/base.safetensors"],
    "report": ["report", "earlier", "--html", "--figures", "out"],
    "demo": ["demo", "--out", "out"],
    "predictors": ["study", "predictors", "--diagnosis", "d.json", "--comparison", "c.json", "--out", "out"],
    "reproduce": ["reproduce", "baseline", "--quick", "--splits", "1", "--out", "out"],
}
# In `make test` a few moments of the slower ones are crossed, in `make test-full` all.
SOME = {
    "operate": 2,
    "folds": 2,
    "compare": 2,
    "compare-operations": 3,
    "diagnose": 3,
    "spectrum": 1,
    "study": 2,
    "loop": 8,
}
WHOLE = ["operate", "folds", "compare", "spectrum", "study", "loop", "report", "demo", "predictors", "reproduce"]
# With one of these a folder is finished.
LAST = ("result.json", "compare.json", "net.safetensors", "README.md")
OUT_OF_ROOM = {"loop": 3, "train": 6, "diagnose": 2, "apply": 4}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with all that the commands need, and the weights of the small case."""
    folder = tmp_path_factory.mktemp("start")
    save_tensors(folder / "base.safetensors", faults.trained_net().state_dict())
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """Sums do not depend on how many threads share them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def call(folder, *arguments):
    """Run the command line in a folder; return the exit code."""
    was, argv = os.getcwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["hessian-surgery", *arguments]
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    finally:
        os.chdir(was)
        sys.argv = argv
    return 0


def prepared(start, folder, name):
    """A folder in which a command can be called."""
    shutil.copytree(start, folder)
    if name in ("apply", "revert", "report"):
        assert call(folder, *COMMANDS["loop"][:-1], "earlier") == 0
        shutil.copy(folder / "earlier/patch.safetensors", folder)
        shutil.copy(folder / "earlier/model.safetensors", folder / "patched.safetensors")
    if name == "predictors":
        assert call(folder, "diagnose", *PARTS, "--spikes", "auto", "--out", "d") == 0
        assert call(folder, "compare", *ALL, *SHORT, "--methods", "spikes", "--out", "c") == 0
        shutil.copy(folder / "d/diagnosis.json", folder / "d.json")
        shutil.copy(folder / "c/compare.json", folder / "c.json")
    return folder


def run_again(folder, name, whole, capsys):
    """After a fault the same command ends as without one, or says that all is there."""
    capsys.readouterr()
    resume = ["--resume"] if COMMANDS[name][0] == "operate" else []
    code = call(folder, *COMMANDS[name], *resume)
    said = capsys.readouterr().err
    if code != 0:
        assert "finished" in said or "exists" in said, said
        assert "unfinished" not in said
    else:
        assert not [left for left in faults.contents(folder) if faults.LEFT.search(left)]
    assert not differing(folder, whole)


def differing(folder, whole):
    """The files in which a folder differs from the whole results."""
    found = faults.results(folder)
    return [name for name in {*found, *whole} if found.get(name) != whole.get(name)]


def chosen(number, of):
    """So many whole numbers from 1 to `of`, evenly; all if there are no more."""
    return (
        sorted({round(1 + i * (of - 1) / max(1, number - 1)) for i in range(number)})
        if number < of
        else range(1, of + 1)
    )


def check_kills(start, tmp_path, name, capsys, most):
    folder = prepared(start, tmp_path / "whole", name)
    with faults.told(folder, faults.snapshots(folder, tmp_path / "killed")):
        assert call(folder, *COMMANDS[name]) == 0
    whole = faults.results(folder)
    killed = sorted((tmp_path / "killed").iterdir())
    for number in chosen(most, len(killed)):
        run_again(killed[number - 1], name, whole, capsys)
    return len(killed)


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in ("demo", "report", "predictors", "reproduce")])
def test_killed_at_any_change_of_its_folder(name, start, tmp_path, capsys):
    assert check_kills(start, tmp_path, name, capsys, SOME.get(name, 100)) >= 3


@pytest.mark.full
@pytest.mark.parametrize("name", WHOLE)
def test_every_change_is_crossed_by_a_kill(name, start, tmp_path, capsys):
    assert check_kills(start, tmp_path, name, capsys, 1000) >= 3


def check_no_room(start, tmp_path, name, capsys, most):
    folder = prepared(start, tmp_path / "whole", name)
    changes = []
    with faults.told(folder, lambda event, path: changes.append(path) if event != "read" else None):
        assert call(folder, *COMMANDS[name]) == 0
    whole = faults.results(folder)
    clean = prepared(start, tmp_path / "clean", name)
    for number in chosen(most, len(changes)):
        folder = tmp_path / f"full{number}"
        shutil.copytree(clean, folder)
        capsys.readouterr()
        with faults.told(folder, faults.fails_at(number)):
            code = call(folder, *COMMANDS[name])
        said = capsys.readouterr().err
        assert code in (0, 2), said
        if code == 2:
            lines = [line for line in said.splitlines() if line.startswith("error: ")]
            assert len(lines) == 1, said
            assert "No space left on device" in lines[0]
            assert not [path for path in faults.contents(folder) if path.endswith(".hessian-surgery")]
        run_again(folder, name, whole, capsys)


@pytest.mark.parametrize("name", OUT_OF_ROOM)
def test_a_disk_that_is_full(name, start, tmp_path, capsys):
    check_no_room(start, tmp_path, name, capsys, OUT_OF_ROOM[name])


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full_at_other_moments(name, start, tmp_path, capsys):
    check_no_room(start, tmp_path, name, capsys, 5)


@pytest.mark.parametrize("number", [3, 12, 25])
def test_asked_to_end(number, start, tmp_path, capsys):
    """As after Ctrl-C: a line says how to go on, and nothing is left half written."""
    folder = prepared(start, tmp_path / "whole", "loop")
    assert call(folder, *COMMANDS["loop"]) == 0
    ended = prepared(start, tmp_path / "ended", "loop")
    with faults.told(ended, faults.acts_at(number, lambda: os.kill(os.getpid(), signal.SIGTERM))):
        assert call(ended, *COMMANDS["loop"]) == 128 + signal.SIGTERM
    left = [name for name in faults.contents(ended) if name.endswith((".lock", ".hessian-surgery"))]
    assert not left
    run_again(ended, "loop", faults.results(folder), capsys)


def in_child(folder, name, number):
    """Call a command that kills itself before a change; in a process of its own."""
    torch.set_num_threads(1)
    with faults.told(folder, faults.acts_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL))):
        call(folder, *COMMANDS[name])


@pytest.mark.full
@pytest.mark.parametrize(("name", "kills"), [("loop", 8), ("compare", 6), ("folds", 5), ("train", 5)])
def test_processes_that_are_killed(name, kills, start, tmp_path, capsys):
    """What a copy of the folder stands for above, with real signals."""
    folder = prepared(start, tmp_path / "whole", name)
    changes = []
    with faults.told(folder, lambda event, path: changes.append(path) if event != "read" else None):
        assert call(folder, *COMMANDS[name]) == 0
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults", "hessian_surgery.cli.compare", "hessian_surgery.cli.train"])
    for number in chosen(kills, len(changes)):
        killed = prepared(start, tmp_path / f"killed{number}", name)
        child = context.Process(target=in_child, args=(killed, name, number))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        run_again(killed, name, faults.results(folder), capsys)


def unfinished(start, tmp_path, name, holding):
    """The finished results of a command, and its folder as a late kill leaves it, with a file."""
    folder = prepared(start, tmp_path / "whole", name)
    with faults.told(folder, faults.snapshots(folder, tmp_path / "killed")):
        assert call(folder, *COMMANDS[name]) == 0
    for killed in sorted((tmp_path / "killed").iterdir(), reverse=True):
        found = faults.contents(killed)
        if any(path.endswith(holding) for path in found) and not any(path.endswith(LAST) for path in found):
            return faults.results(folder), killed
    raise AssertionError(f"no moment at which {name} holds {holding}")


def check_damage(start, tmp_path, name, file, capsys, times):
    """A damaged file is refused in one line, or was of no use: never another result."""
    whole, killed = unfinished(start, tmp_path, name, file)
    draw, refused = random.Random(0), 0
    for number in range(times):
        folder = tmp_path / f"damaged{number}"
        shutil.copytree(killed, folder)
        (path,) = [p for p in folder.rglob(file.rpartition("/")[2]) if str(p).endswith(file)]
        content = bytearray(path.read_bytes())
        if number % 3 == 0:
            del content[draw.randrange(len(content)) :]
        else:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        capsys.readouterr()
        code = call(folder, *COMMANDS[name], *(["--resume"] if COMMANDS[name][0] == "operate" else []))
        said = capsys.readouterr().err
        assert code in (0, 2), said
        if code == 0:
            assert not differing(folder, whole)
        else:
            refused += 1
            assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1, said
            assert file.rpartition("/")[2] in said
    assert refused >= times / 2


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("loop", "checkpoint/state.safetensors"),
        ("loop", "history.jsonl"),
        ("train", "training.safetensors"),
    ],
)
def test_a_damaged_state(name, file, start, tmp_path, capsys):
    check_damage(start, tmp_path, name, file, capsys, 8)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("operate", "checkpoint/state.safetensors"),
        ("folds", "fold-1/answers.safetensors"),
        ("folds", "fold-1/history.jsonl"),
        ("compare", "training-focal/training.safetensors"),
        ("compare-operations", "splits-operate.safetensors"),
    ],
)
def test_other_damaged_states(name, file, start, tmp_path, capsys):
    check_damage(start, tmp_path, name, file, capsys, 9)


@pytest.mark.parametrize("name", ["operate", "compare", "diagnose", "spectrum", "study", "demo", "train"])
def test_two_runs_on_one_folder(name, start, tmp_path, capsys):
    folder = prepared(start, tmp_path / "two", name)
    place = folder / ("out/net.training" if name == "train" else "out")
    with claimed(place):
        before = faults.contents(folder)
        assert call(folder, *COMMANDS[name]) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert faults.contents(folder) == before


def with_training(name, source):
    """A command with other training data."""
    return [source if word == "faults:training" else word for word in COMMANDS[name]]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("operate", part) for part in ("training", "calibration", "heldout")),
        *(("loop", part) for part in ("training", "calibration", "heldout")),
        *(("compare", part) for part in ("calibration", "heldout")),
        *(("train", part) for part in ("training", "heldout")),
        *(("folds", "training"), ("diagnose", "calibration"), ("spectrum", "training"), ("study", "training")),
    ],
)
def test_a_batch_that_is_not_a_number(name, part, start, tmp_path, capsys):
    folder = prepared(start, tmp_path / "nan", name)
    arguments = [f"faults:broken_{part}" if word == f"faults:{part}" else word for word in COMMANDS[name]]
    assert call(folder, *arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert "not finite" in error or "is nan" in error
    assert not [path for path in faults.contents(folder) if path.endswith((*LAST, ".hessian-surgery"))]


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("train", (1, 250)),
        ("loop", (1, 20)),
        pytest.param("compare", (1, 400, 1000), marks=pytest.mark.full),
    ],
)
def test_a_shard_that_cannot_be_read(name, reads, start, tmp_path, capsys):
    """A comparison does not take it for a method's failing."""
    folder = prepared(start, tmp_path / "whole", name)
    arguments = with_training(name, "faults:sharded_training")
    total = []
    with faults.told(folder, lambda event, path: total.append(1) if path.name == "shard.bin" else None):
        assert call(folder, *arguments) == 0
    whole = faults.results(folder)
    for number in reads:
        assert number < len(total)
        torn = prepared(start, tmp_path / f"torn{number}", name)
        capsys.readouterr()
        with faults.told(torn, faults.cannot_read(number)):
            assert call(torn, *arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "a sample cannot be read: [Errno 5] Input/output error" in error
        assert call(torn, *arguments, *(["--resume"] if name == "loop" else [])) == 0
        assert not differing(torn, whole)
