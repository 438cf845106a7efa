"""The verdict on an operation, in one word and one sentence: did it do what was asked?"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.paired_tests import FEW_IMAGES, ClassTest, PairedTests
from hessian_surgery.evidence.promises import Promise
from hessian_surgery.evidence.significance import mcnemar

Result: TypeAlias = Literal["better", "no detectable change", "worse"]
Tone: TypeAlias = Literal["good", "mixed", "bad", "plain"]
TONES: dict[Result, Tone] = {"better": "good", "no detectable change": "plain", "worse": "bad"}


@dataclass(frozen=True)
class Verdict:
    """One word for programs, and a headline and a sentence for people.

    Attributes:
        outcome: whether the aim was reached.
        sentence: the headline, with what was asked and what was measured.
        headline: the outcome, and how much of what was asked for is not met.
        tone: "good" only if nothing that was asked for is unmet; "mixed" if something is.

    Example:
        >>> outcome.verdict.outcome, outcome.verdict.tone
        ('better', 'good')
    """

    outcome: Result
    sentence: str
    headline: str = ""
    tone: Tone = "plain"


def judge(
    tests: PairedTests,
    images: int,
    asked: Asked,
    promises: tuple[Promise, ...] = (),
    criteria: tuple[CheckedCriterion, ...] = (),
) -> Verdict:
    """Judge an operation by what it was asked for, on held-out images.

    Targets decide if there are any; else σ or the worst class, whichever was aimed at. A gain does
    not count if accuracy fell by more than the budget. A loss within the budget is what was asked
    for: without a gain that can be seen it is no reason to call the model worse, nor to keep it.
    Too few images allow no claim. The headline also counts the targets, limits and acceptance
    criteria that are not met.

    Args:
        tests: before against after.
        images: held-out images.
        asked: what the operation was asked for.
        promises: whether each part of that was kept.
        criteria: acceptance criteria, if there are any.
    """
    unmet = _unmet(promises, criteria)
    also = f" {unmet.capitalize()}." if unmet else ""
    if images < FEW_IMAGES:
        return _verdict("no detectable change", f"No claim can be made from {images} held-out images.{also}", unmet)
    targets = [promise for promise in promises if promise.promise == "target"]
    reached = bool(targets) and all(target.state == "reached" for target in targets)
    if tests.churn == 0:
        why = "every target is reached as it is" if reached else "no step was kept, or none that matters"
        return _verdict("no detectable change", f"No prediction changed: {why}.{also}", unmet)
    outcome, claim, aside = _judge_targets(tests, asked, targets) if targets else _judge_aim(tests, asked)
    broken = [promise for promise in promises if promise.promise == "limit" and promise.state == "broken"]
    accuracy = f"accuracy {tests.accuracy}{_losers(tests)}{_broken(broken)}"
    advice = "" if outcome == "better" or reached else " Keep the original model."
    rest = f" (asked: {asked}): {claim} on held-out images{aside}, {accuracy}.{advice}"
    return _verdict(outcome, _headline(outcome, unmet) + rest, unmet)


def _verdict(outcome: Result, sentence: str, unmet: str) -> Verdict:
    tone = "mixed" if unmet and outcome != "worse" else TONES[outcome]
    return Verdict(outcome, sentence, _headline(outcome, unmet), tone)


def _headline(outcome: Result, unmet: str) -> str:
    return outcome.capitalize() + (f", {'but' if outcome == 'better' else 'and'} {unmet}" if unmet else "")


def _unmet(promises: tuple[Promise, ...], criteria: tuple[CheckedCriterion, ...]) -> str:
    """How many targets are missed, limits broken and criteria not met, of how many; or nothing."""
    parts = []
    for kind, word in (("target", "missed"), ("limit", "broken")):
        own = [promise for promise in promises if promise.promise == kind]
        short = sum(promise.met == "no" for promise in own)
        if short:
            parts.append(f"{short} of {len(own)} {kind}{'' if len(own) == 1 else 's'} {word}")
    failed = sum(not criterion.met for criterion in criteria)
    if failed:
        parts.append(f"{failed} of {len(criteria)} criteri{'on' if len(criteria) == 1 else 'a'} not met")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _judge_aim(tests: PairedTests, asked: Asked) -> tuple[Result, str, str]:
    """Judge by the change of σ or of the worst class: the outcome, the claim, what to add to it."""
    spread = f"σ without sampling noise {tests.sigma}"
    worst = f"worst class {tests.worst}"
    if asked.aim == "sigma":
        fell, rose = tests.sigma.interval[1] < 0, tests.sigma.interval[0] > 0
        gain, loss, claim, beside = fell, rose, spread, worst
    else:
        fell, rose = tests.worst.interval[1] < 0, tests.worst.interval[0] > 0
        gain, loss, claim, beside = rose, fell, worst, spread
    overspent = _overspent(tests, asked)
    if gain:
        return ("worse", claim, f", but {overspent}") if overspent else ("better", claim, f", {beside}")
    if loss:
        return "worse", claim, f", {beside}"
    lost = -tests.accuracy.interval[1]
    if lost > (asked.budget or 0.0):
        return "worse", f"no detectable gain ({claim})", " for a loss of accuracy"
    # Few images show a loss of accuracy before they show the gain that it was spent on.
    allowed = ", for accuracy that the budget allows to lose" if lost > 0 else ""
    return "no detectable change", claim, f" is within noise{allowed}"


def _judge_targets(tests: PairedTests, asked: Asked, targets: list[Promise]) -> tuple[Result, str, str]:
    """Judge by the targets: all reached, or nearer beyond noise. Returns what `_judge_aim` does.

    The targeted classes rose or fell beyond noise if an exact McNemar test of all their images
    together says so at 5 %.
    """
    states = _listed([f"{target.name} {target.figure} {target.state}" for target in targets])
    overspent = _overspent(tests, asked)
    if overspent:
        return "worse", states, f", but {overspent}"
    own = [test for test in tests.per_class if test.name in asked.targets]
    gained, lost = (sum(getattr(test, name) for test in own) for name in ("gained", "lost"))
    if all(target.state == "reached" for target in targets):
        if gained >= lost:
            return "better", states, ""
        # They were reached before as well: what counts is what came after them.
        outcome, claim, aside = _judge_aim(tests, asked)
        return outcome, f"{states}, as before; {claim}", aside
    moved = f"; of targeted classes {gained} became right and {lost} wrong"
    if mcnemar(gained, lost) >= 0.05:
        return "no detectable change", states, f"{moved}, within noise"
    return ("better" if gained > lost else "worse"), states, moved


def _overspent(tests: PairedTests, asked: Asked) -> str | None:
    """Say that accuracy fell by more than the budget, beyond noise; without one, at all.

    Without a budget only balanced accuracy counts: even classes may cost accuracy over all images
    where common classes were the strong ones.
    """
    allowed = asked.budget or 0.0
    more = f"more than the {100 * allowed:.3g} pp allowed" if asked.budget is not None else "beyond noise"
    if tests.balanced_accuracy.interval[1] < -allowed:
        return f"the classes lost {more} on average ({tests.balanced_accuracy})"
    if asked.budget is not None and tests.accuracy.interval[1] < -allowed:
        return f"accuracy fell by {more}"
    return None


def _broken(promises: list[Promise]) -> str:
    """Name the protected classes that lost too much, as the end of a sentence."""
    return f"; lost more than allowed: {_listed([f'{p.name} ({p.figure})' for p in promises])}" if promises else ""


def _losers(tests: PairedTests) -> str:
    """Name the classes that lost significantly, as the end of a sentence."""
    lost = [test for test in tests.per_class if test.claim and test.p_holm < 0.05 and test.lost > test.gained]

    def net(test: ClassTest) -> int:
        return test.lost - test.gained

    named = [f"{test.name} ({net(test)} images)" for test in sorted(lost, key=net, reverse=True)]
    return f"; lost significantly: {_listed(named)}" if named else ""


def _listed(named: list[str]) -> str:
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"{', '.join(named[:3])}{more}"
