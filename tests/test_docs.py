"""Every Python block of the README and the guides runs."""

import re
from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [(page.name, code) for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
def test_block_runs(page, code, trained, digits_parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = digits_parts.heldout
    given = {
        "model": trained,
        "train_dataset": digits_parts.hessian,
        "test_dataset": TensorDataset(test.inputs(), test.labels),
    }
    exec(compile(code, page, "exec"), given)
    assert "hs" in given


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_guide_names_every_file_of_a_run():
    guide = (ROOT / "docs/operate.md").read_text()
    for name in (
        "result.json",
        "history.jsonl",
        "config.json",
        "predictions.safetensors",
        "patch.safetensors",
        "model.safetensors",
    ):
        assert f"`{name}`" in guide
