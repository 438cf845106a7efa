"""Findings: what the images say about an operation, computed from the answers to each."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from hessian_surgery.data.labelled import Noun
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.costs import Costs, cost_warnings, find_costs
from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.deciles import MANY_CLASSES, ClassGroup, deciles
from hessian_surgery.evidence.noun import said_of
from hessian_surgery.evidence.overfitting import overfitting_warning
from hessian_surgery.evidence.paired_tests import PairedTests, paired_tests
from hessian_surgery.evidence.plain_words import plain_words
from hessian_surgery.evidence.promises import Promise, check_promises, promise_warnings
from hessian_surgery.evidence.simpler import Simpler
from hessian_surgery.evidence.verdict import Verdict, judge
from hessian_surgery.short_repr import short_repr
from hessian_surgery.weights.changed import WeightChanges

# How much longer intervals are with folds. The operations of the folds share images, so their
# errors are alike, and resampling images one by one understates the spread a little: without this,
# 95 % intervals of Δσ held the truth in 92 % of 300 simulated runs.
ALIKE = 1.06


@dataclass(frozen=True)
class Findings:
    """What the images say.

    Attributes:
        calibration: the images that every decision was made on, before and after.
        heldout: the images that nothing was fitted to, before and after. In folds these are all
            images, each after the operation that did not see it.
        asked: what the operation was asked for.
        tests: paired tests on the held-out images.
        promises: whether each part of what was asked for is kept there.
        verdict: what all that amounts to.
        warnings: what limits what can be said, what was missed or broken, and what got worse.
        folds: how many folds there were; None if images were held out.
        criteria: acceptance criteria as they were checked; empty if there were none.
        changed: which weights the step changed; None in runs of earlier versions.
        temperature: what the head was divided by after that; None without recalibration.
        simpler: what a class bias would have done; None if none was fitted.
        noun: what samples are called: "images", "texts" or "samples".

    Example:
        >>> [promise.state for promise in outcome.findings.promises][:2]
        ['reached', 'kept']
    """

    calibration: BeforeAfter
    heldout: BeforeAfter
    asked: Asked
    tests: PairedTests
    promises: tuple[Promise, ...]
    verdict: Verdict
    warnings: tuple[str, ...]
    folds: int | None = None
    criteria: tuple[CheckedCriterion, ...] = ()
    changed: WeightChanges | None = None
    temperature: float | None = None
    simpler: Simpler | None = None
    noun: Noun = "images"

    __repr__ = short_repr

    @cached_property
    def costs(self) -> Costs:
        """Which classes lost, and what became of loss and calibration."""
        return find_costs(self.tests, self.heldout.metrics()[1].count)

    @property
    def plain(self) -> str:
        """What was done, for someone who has never heard of σ."""
        return self.said(plain_words(self.heldout, self.tests))

    def said(self, text: str) -> str:
        """A text about images, as one about what the data are."""
        return said_of(text, self.noun, self.heldout.classes)

    def judged(self, verdict: Verdict) -> "Findings":
        """The same with a verdict."""
        return replace(self, verdict=replace(verdict, sentence=self.said(verdict.sentence)))

    def with_simpler(self, simpler: Simpler | None) -> "Findings":
        """The same with a comparison; its intervals are as long as the others."""
        if simpler is not None and self.folds is not None:
            simpler = replace(simpler, tests=simpler.tests.widened(ALIKE))
        return replace(self, simpler=simpler)

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` holds of it, without the metrics."""
        return {
            "verdict": asdict(self.verdict),
            "plain": self.plain,
            "asked": self.asked.as_dict(),
            "promises": [promise.as_dict() for promise in self.promises],
            "changed": None if self.changed is None else self.changed.as_dict(),
            "recalibrated": None if self.temperature is None else {"temperature": self.temperature},
            "costs": self.costs.as_dict(),
            "simpler": None if self.simpler is None else self.simpler.as_dict(),
            "warnings": list(self.warnings),
            "tests": self.tests.as_dict(),
            "deciles": [group.as_dict() for group in self.deciles],
            "noun": self.noun,
        }

    @cached_property
    def deciles(self) -> tuple[ClassGroup, ...]:
        """Many classes in ten groups; empty if the classes can be shown one by one."""
        return deciles(self.calibration, self.heldout) if self.many else ()

    @property
    def many(self) -> bool:
        """Whether there are too many classes to show each."""
        return len(self.heldout.classes) > MANY_CLASSES

    @property
    def note(self) -> str | None:
        """What must be said beside the figures of folds; None if images were held out."""
        if self.folds is None:
            return None
        return self.said(
            f"The delivered step is the mean of {self.folds} operations, each without one fold of the "
            f"{len(self.heldout.labels):,} images. The figures are theirs, each on the fold that it did not see."
        )


def make_findings(
    calibration: BeforeAfter,
    heldout: BeforeAfter,
    asked: Asked,
    warnings: tuple[str, ...],
    seed: int,
    *,
    folds: int | None = None,
    temperature: float | None = None,
    free: bool = True,
    criteria: tuple[CheckedCriterion, ...] = (),
    noun: Noun = "images",
) -> Findings:
    """All statistics, from the answers to each image.

    Args:
        calibration: the images that every decision was made on.
        heldout: the images that judge.
        asked: what was asked for.
        warnings: those about data and method; they may hold those that are found here.
        seed: fixes the resamples.
        folds: how many there were; None if images were held out.
        temperature: what the head was divided by; None without recalibration.
        free: whether the head may move, so that recalibration can be advised.
        criteria: acceptance criteria, if there are any.
        noun: what samples are called.
    """
    tests = paired_tests(heldout, seed)
    if folds is not None:
        tests = tests.widened(ALIKE)
    aim = tests.worst if asked.aim == "worst" else tests.sigma
    promises = check_promises(asked, heldout, tests.accuracy, aim)
    verdict = judge(tests, len(heldout.labels), asked, promises, criteria)
    costs = find_costs(tests, heldout.metrics()[1].count)
    overfitted = overfitting_warning(calibration, tests, folds)
    found = (*promise_warnings(promises), *cost_warnings(costs, free and temperature is None))
    found += () if overfitted is None else (overfitted,)
    every = tuple(dict.fromkeys(said_of(one, noun, heldout.classes) for one in (*warnings, *found)))
    findings = Findings(calibration, heldout, asked, tests, promises, verdict, every, folds)
    findings = replace(findings, temperature=temperature, criteria=criteria, noun=noun)
    return findings.judged(verdict)
