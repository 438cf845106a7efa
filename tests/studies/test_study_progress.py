import pytest

from hessian_surgery.studies.progress import part_of


def test_parts_of_parts_make_one_whole():
    """Parts take their share of the work: here a quarter and three quarters."""
    seen = []
    for outer in range(2):
        for inner in range(4):
            report = part_of(part_of(lambda *told: seen.append(told), outer, (1, 3)), inner, (1, 1, 1, 1))
            report(1, 2)
            report(2, 2)
    assert seen[-1] == (1000, 1000)
    expected = [250 * i / 8 for i in range(1, 9)] + [250 + 750 * i / 8 for i in range(1, 9)]
    assert [done for done, _ in seen] == pytest.approx(expected, abs=1)


def test_progress_that_nobody_watches():
    part_of(None, 0, (1,))(1, 1)
