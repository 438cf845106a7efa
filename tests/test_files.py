import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hessian_surgery.errors import FileError, InputError
from hessian_surgery.files import LOCK, append_text, claimed, write_text, written_beside
from hessian_surgery.ranks import Ranks, acting
from hessian_surgery.stored import read_json
from hessian_surgery.weights.tensorfile import save_tensors


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    write_text(path, "old")
    with pytest.raises(KeyError), written_beside(path) as beside:
        beside.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_text_is_added_or_overwritten(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    append_text(path, "one\n")
    append_text(path, "two\n")
    assert path.read_text() == "one\ntwo\n"
    append_text(path, "three\n", overwrite=True)
    assert path.read_text() == "three\n"


def test_bad_json_is_named(tmp_path):
    path = tmp_path / "file.json"
    with pytest.raises(InputError, match=r"with: .* cannot be read as JSON"):
        read_json(path, "with")
    path.write_text("[1]")
    with pytest.raises(InputError, match="does not hold a JSON object"):
        read_json(path, "with")


def test_files_have_the_usual_permissions(tmp_path):
    save_tensors(tmp_path / "t.safetensors", {"a": torch.ones(1)})
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "t.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for write in (write_text, append_text):
        with pytest.raises(InputError, match=r"cannot be written: (Not a directory|File exists)"):
            write(tmp_path / "file" / "below", "text")


def test_a_claim_without_files_leaves_no_folder(tmp_path):
    with claimed(tmp_path / "a"):
        pass
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    with claimed(tmp_path / "b"), pytest.raises(InputError, match="another process"), claimed(tmp_path / "b"):
        pass
    assert list((tmp_path / "b").iterdir()) == []


def test_a_claim_removes_what_a_killed_process_left_and_nothing_else(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    ours = [tmp_path / ".state.1.hessian-surgery", tmp_path / "checkpoint/.state.safetensors.77.hessian-surgery"]
    theirs = [tmp_path / ".notes.tmp", tmp_path / ".lock", tmp_path / "a.hessian-surgery"]
    for path in (*ours, *theirs):
        path.write_text("text")
    with claimed(tmp_path):
        pass
    assert [path.exists() for path in ours] == [False, False]
    assert [path.read_text() for path in theirs] == ["text"] * 3


def test_a_refused_folder_keeps_everything(tmp_path):
    left = tmp_path / ".state.1.hessian-surgery"
    left.write_text("text")

    def refuse():
        raise InputError("out: refused")

    with pytest.raises(InputError, match="refused"), claimed(tmp_path, refuse):
        pass
    assert list(tmp_path.iterdir()) == [left]


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path):
    (tmp_path / "precious").write_text("text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="cannot be written"), claimed(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "text"


def test_a_file_that_a_killed_process_left_half_written_goes_with_the_next(tmp_path):
    """That of a process which still runs stays."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, held = (tmp_path / f".file.txt.{process}.hessian-surgery" for process in (gone.pid, os.getppid()))
    for path in (left, held):
        path.write_text("half")
    write_text(tmp_path / "file.txt", "whole")
    assert not left.exists()
    assert held.exists()


def test_folders_on_the_way_go_too_if_nothing_was_written(tmp_path):
    with claimed(tmp_path / "a/b/c"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_never_replaced(tmp_path):
    """What ranks that do not write drop went there once, and a library that renames replaced it."""
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    for place in (Path(os.devnull), link):
        with pytest.raises(FileError, match="is no file that can be replaced"):
            write_text(place, "lost")
    with acting(Ranks(rank=1, size=2, writes=False)), written_beside(tmp_path / "x.safetensors") as beside:
        save_file({"a": torch.ones(2)}, beside)
    assert not (tmp_path / "x.safetensors").exists()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
