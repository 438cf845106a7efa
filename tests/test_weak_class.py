"""The page that goes from a weak class to a shipped model: its commands, run in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "weak-class.md"


@pytest.mark.full
def test_the_page_runs_from_start_to_end(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What the page shows of the answer, but for its figures, which depend on the machine.
    shown = re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    for line in ("Better", "a lower σ (without sampling noise): reached", "20 of 20 acceptance criteria: met"):
        assert line in shown
        assert line in done.stdout
    for name in ("run/report.html", "report.md", "comparison/compare.json", "card.md"):
        assert (tmp_path / name).stat().st_size > 0
