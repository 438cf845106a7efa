import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from hessian_surgery.evidence.significance import detectable_change, holm, mcnemar


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_agrees_with_statsmodels(gained, lost):
    expected = reference_mcnemar([[5, lost], [gained, 5]], exact=True).pvalue
    assert mcnemar(gained, lost) == pytest.approx(min(1.0, expected))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_statsmodels(p):
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())


@pytest.mark.parametrize(("images", "changed", "classes"), [(50, 0, 10), (100, 5, 1), (100, 30, 10), (400, 80, 1)])
def test_a_detectable_change_is_found_in_four_cases_of_five(images, changed, classes):
    """By simulation; a change that is one image smaller is not found that often."""
    found = round(detectable_change(images, changed, classes) * images)

    def power(net):
        moving = max(changed, net)
        gained = np.random.default_rng(0).binomial(moving, (moving + net) / (2 * moving), size=4000)
        return np.mean([mcnemar(int(g), moving - int(g)) < 0.05 / classes for g in gained])

    assert power(found) >= 0.78
    assert power(found - 1) <= 0.82
    assert detectable_change(3, 3) == 1.0
