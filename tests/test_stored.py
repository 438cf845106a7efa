import pytest

import hessian_surgery as hs
from hessian_surgery.stored import LARGEST, blamed_on, read_json, read_versioned


def test_a_file_that_is_too_large_or_too_deep_is_refused_before_it_is_built(tmp_path):
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(hs.InputError, match="has more than 40,000,000 bytes"):
        read_json(path, "with")
    path.write_text("[" * 100_000)
    with pytest.raises(hs.InputError, match="cannot be read as JSON: it is nested too deeply"):
        read_json(path, "with")


def test_the_version_comes_before_the_rest(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"schema_version": 7}')
    with pytest.raises(hs.InputError, match=r"was written by another version \(schema 7\); operate again"):
        read_versioned(path, "run", dict, "operate")


def test_faults_are_blamed_on_the_file_and_others_pass():
    with pytest.raises(hs.InputError, match="run: here is damaged or incomplete: it lacks 'a'"), blamed_on("run: here"):
        {}["a"]
    with pytest.raises(hs.InputError, match="mine"), blamed_on("run: here"):
        raise hs.InputError("mine")
    with pytest.raises(KeyboardInterrupt), blamed_on("run: here"):
        raise KeyboardInterrupt
