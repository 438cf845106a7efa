"""What every study's report is checked for."""

import json

from hessian_surgery.report.figure_style import save_figure


def check_report(study, result, folder):
    """Check that a result becomes JSON, a labelled figure in two formats, and whole sentences."""
    json.dumps(result.as_dict(), allow_nan=False)
    figure = study.draw(result)
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
    for suffix in ("svg", "png"):
        save_figure(figure, folder / f"figure.{suffix}")
    written = (folder / "figure.svg").read_text()
    assert all(axes.get_xlabel().split("  ")[0] in written for axes in figure.axes)
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    text = study.describe(result)
    assert text.endswith(".")
    assert "nan" not in text
    assert "None" not in text
