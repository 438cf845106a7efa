import pytest
import torch

from hessian_surgery.errors import InputError
from hessian_surgery.files import append_text, claimed, write_text, written_beside
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
