"""The tutorial notebook: its cells run in order, and it is stored with what they showed."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"
NUMBER = re.compile(r"\d+(\.\d+)?(e-\d+)?")


def test_the_notebook_runs_and_shows_what_its_cells_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    given = {}
    for cell in cells:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), "cell", "exec"), given)
        stored = "".join(line for output in cell["outputs"] for line in output.get("text", []))
        if "forecast" in cell["source"][1] or "patch" in cell["source"][0]:
            # Figures may differ in their last digits from machine to machine; words may not.
            assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", stored)
            assert stored
    assert given["outcome"].verdict.headline == "Better"
    assert given["asked"].findings.asked.targets == {"9": 0.5}
    assert (tmp_path / "run" / "report.html").exists()
    assert all(given["torch"].equal(given["restored"][name], given["original"][name]) for name in given["original"])
    kinds = [kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})]
    assert "text/html" in kinds
