"""The pages of committed results: rows, and how long all of it took."""

import json

import pytest

from hessian_surgery.reproduce.results import write_results
from hessian_surgery.sealed import write_sealed

pytestmark = pytest.mark.usefixtures("own_folder")


def test_the_time_of_all_commands_is_told(run, tmp_path):
    assert run("reproduce", "baseline", "--quick", "--out", "again") == 0
    folder = tmp_path / "again"
    commands = [{"command": name, "processes": 4, "device": "H", "jobs": 1, "seconds": 90.0} for name in ("a", "b")]
    write_sealed(folder / "time.json", {"commands": commands})
    assert write_results(folder) == ["baseline"]
    index = (folder / "index.md").read_text()
    assert "All of it took 3 minutes ([JSON](time.json)):" in index
    assert "| `a` | H | 1.5 |\n| `b` | H | 1.5 |\n" in index
    assert json.loads((folder / "baseline.json").read_text())["processes"] == 1
    (folder / "time.json").unlink()
    write_results(folder)
    assert "took" not in (folder / "index.md").read_text()
