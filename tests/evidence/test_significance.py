import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hessian_surgery.evidence.significance import _power, detectable_change, holm, mcnemar


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_twice_a_binomial_tail(gained, lost):
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1)) / 2**changed
    assert mcnemar(gained, lost) == pytest.approx(min(1.0, 2 * tail))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_is_bonferroni_in_every_set_that_holds_the_hypothesis(p):
    """The closed testing procedure: the largest corrected p of all sets of hypotheses."""
    numbers = range(len(p))
    sets = [chosen for size in range(1, len(p) + 1) for chosen in combinations(numbers, size)]
    corrected = {chosen: min(1.0, len(chosen) * min(p[i] for i in chosen)) for chosen in sets}
    assert holm(p) == pytest.approx([max(v for chosen, v in corrected.items() if i in chosen) for i in numbers])


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


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 20))
def test_a_larger_change_is_found_as_often_or_more(images, changed, tests):
    """What lets the smallest one be sought by halving: the first of all changes that is found."""
    level = 0.05 / tests
    found = [net for net in range(1, images + 1) if _power(net, max(changed, net), level) >= 0.8]
    assert found == list(range(found[0], images + 1)) if found else True
    assert detectable_change(images, changed, tests) == (found[0] / images if found else 1.0)
