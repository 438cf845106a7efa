import matplotlib
import pytest

import hessian_surgery as hs
from hessian_surgery.report.figure_style import BLUE, new_figure, save_figure


def sketch():
    figure, axes = new_figure(1, 2)
    axes[0].plot([0, 1], [2, 3], "o-", color=BLUE, label="a line")
    axes[0].set(xlabel="size ‖θ‖", ylabel="loss")
    axes[0].legend()
    return figure


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("one.svg", "two.svg"):
        save_figure(sketch(), tmp_path / name)
    one, two = ((tmp_path / name).read_text() for name in ("one.svg", "two.svg"))
    assert one == two
    assert "size ‖θ‖" in one
    assert "<dc:date>" not in one


def test_axes_come_row_by_row_and_settings_stay_as_they_were():
    before = dict(matplotlib.rcParams)
    figure, axes = new_figure(2, 3, size=(6, 4))
    assert len(axes) == 6
    assert [part.get_subplotspec().rowspan.start for part in axes] == [0, 0, 0, 1, 1, 1]
    assert figure.get_size_inches().tolist() == [6, 4]
    assert dict(matplotlib.rcParams) == before


def test_other_formats_are_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(hs.InputError, match=r"path: got 'figure.bmp'; give a name that ends in .svg or .png"):
        save_figure(sketch(), tmp_path / "figure.bmp")
    save_figure(sketch(), str(tmp_path / "new" / "figure.PNG"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["figure.PNG"]
