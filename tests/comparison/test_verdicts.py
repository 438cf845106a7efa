import pytest
import torch

from hessian_surgery.comparison.protocol import Split
from hessian_surgery.comparison.verdicts import count_verdicts
from hessian_surgery.evidence.asked import Asked

# A thousand images of each of two classes; the first half of each is held out.
LABELS = torch.arange(2).repeat_interleave(1000)
PLACES = torch.arange(2000)
HELD = PLACES % 1000 < 500
SPLIT = Split(PLACES[~HELD], PLACES[HELD])


def answers(left: float, right: float, part: torch.Tensor = HELD) -> torch.Tensor:
    """Predictions with so large a share right of each class; outside the part as before."""
    share = torch.where(part, torch.tensor([left, right])[LABELS], torch.tensor([0.95, 0.70])[LABELS])
    return torch.where(500 * share > PLACES % 500, LABELS, 1 - LABELS)


BEFORE = answers(0.95, 0.70)


def counted(*after: torch.Tensor, budget: float | None = 0.002) -> dict[str, int]:
    asked = Asked(budget=budget)
    return count_verdicts(BEFORE, torch.stack(after), LABELS, ("left", "right"), [SPLIT] * len(after), asked)


def test_each_split_has_its_own_verdict_and_a_failed_one_has_none():
    failed = torch.full_like(BEFORE, -1)
    after = (answers(0.95, 0.90), answers(0.95, 0.50), BEFORE, failed, answers(0.95, 0.85))
    assert counted(*after) == {"better": 2, "worse": 1, "no detectable change": 1}
    assert counted(failed) == {}


@pytest.mark.parametrize(("budget", "verdict"), [(0.002, "worse"), (0.15, "better"), (None, "worse")])
def test_what_is_lost_counts_against_the_budget(budget, verdict):
    """σ falls from 12.5 pp to 0 for 7.5 pp of accuracy; without a budget no class may lose."""
    assert counted(answers(0.75, 0.75), budget=budget) == {verdict: 1}


def test_only_held_out_images_are_judged():
    seen = answers(0.95, 0.95, ~HELD)
    assert not torch.equal(seen, BEFORE)
    assert counted(seen) == {"no detectable change": 1}
