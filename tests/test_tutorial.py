"""The tutorial notebook: its cells run in order, and it is stored with what they showed."""

import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    given = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), "cell", "exec"), given)
    assert given["outcome"].verdict.headline == "Better"
    assert given["asked"].findings.asked.targets == {"9": 0.5}
    assert (tmp_path / "run" / "report.html").exists()
    assert all(given["torch"].equal(given["restored"][name], given["original"][name]) for name in given["original"])


def test_the_notebook_shows_what_its_cells_gave():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[1:])
    kinds = [kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})]
    assert "text/html" in kinds
