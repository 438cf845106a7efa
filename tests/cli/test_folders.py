"""No file of a user is overwritten, and an unfinished folder is known as such."""

import pytest

from hessian_surgery.cli.folders import OPERATION, UNFINISHED, Output, check_run_folder, marked, writing
from hessian_surgery.errors import InputError

OUTPUT = Output("study", ("study.svg", "study.json"), alone=False)
ALONE = Output("comparison", ("compare.json",), kept="training-")


@pytest.mark.parametrize("name", OUTPUT.names)
def test_a_foreign_file_is_not_overwritten(name, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    OUTPUT.check(tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=r"holds (a finished study|other files, such as study\.svg)"):
        OUTPUT.check(tmp_path)


def test_hidden_files_of_others_count(tmp_path):
    (tmp_path / ".mine.tmp").write_text("")
    with pytest.raises(InputError, match=r"other files, such as \.mine\.tmp"):
        ALONE.check(tmp_path)


def test_what_an_interrupted_command_left_may_be_replaced_by_the_same_one(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing(tmp_path, OUTPUT):
        (tmp_path / "study.svg").write_text("")
        raise KeyboardInterrupt
    assert (tmp_path / UNFINISHED).exists()
    with pytest.raises(InputError, match="holds another command's unfinished work"):
        ALONE.check(tmp_path)
    with writing(tmp_path, OUTPUT):
        (tmp_path / "study.json").write_text("")
    assert {path.name for path in tmp_path.iterdir()} == {"study.svg", "study.json"}
    with pytest.raises(InputError, match="holds a finished study"):
        OUTPUT.check(tmp_path)


def test_a_command_that_wrote_nothing_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="no"), writing(tmp_path / "run", ALONE):
        raise InputError("no")
    assert not (tmp_path / "run").exists()


def test_trainings_of_a_comparison_may_be_there(tmp_path):
    (tmp_path / "training-focal").mkdir()
    ALONE.check(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="such as other"):
        ALONE.check(tmp_path)


def test_an_operation_that_had_not_finished_an_iteration_is_known(tmp_path):
    """In folds, the state of the first fold is there before any history."""
    with pytest.raises(KeyboardInterrupt), marked(tmp_path, OPERATION):
        (tmp_path / "checkpoint").mkdir()
        raise KeyboardInterrupt
    with pytest.raises(InputError, match="unfinished run; give --resume"):
        check_run_folder(tmp_path, resume=False)
    check_run_folder(tmp_path, resume=True)
    (tmp_path / UNFINISHED).unlink()
    with pytest.raises(InputError, match="holds other files, such as checkpoint"):
        check_run_folder(tmp_path, resume=True)
