"""The cases of `benchmarks.promises`: what one run does, and what a row of runs amounts to."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hessian_surgery as hs
from benchmarks.counted_images import (
    NAMES,
    Problem,
    class_accuracies,
    equal_problem,
    skewed_problem,
    unequal_problem,
)
from benchmarks.figures import Figures, average, share
from benchmarks.stated_promises import stated
from hessian_surgery.cli.inputs import digits_net
from hessian_surgery.types import Array

# Training images of a class: as many as class gradients are taken over.
TRAINING = 500
# Held-out images of a class, at least, if the setting does not say how many.
HELDOUT = 100
# Truth is measured on images too: a promise broken by no more than this is not counted as broken.
TOLERANCE = 0.002
MAX_DROP = 0.02
FOLDS = 5
# What the random draws of a run are for.
MAKE, TRUTH, TRAIN, CALIBRATE, HOLD, CHOOSE = range(6)

Setting = dict[str, Any]
Run = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A promise that is simulated.

    Attributes:
        settings: one for each row of the table.
        run: does one run from its setting and number; the number is the seed of all draws.
        summary: the figures of a row.
        runs: how many there are, if that is fixed.
    """

    settings: Sequence[Setting]
    run: Callable[[Setting, int], Run]
    summary: Callable[[Setting, list[Run]], Figures]
    runs: int | None = None


def measured(problem: Problem, setting: Setting, number: int, **operation: Any) -> tuple[Run, hs.Outcome, Array]:
    """Operate on a problem's net, and measure the truth before and after.

    Args:
        problem: the classes and the net.
        setting: names the kind of net.
        number: of the run.
        operation: what `hs.operate` gets beside net and training images.

    Returns:
        The run's figures, the outcome, and true class accuracies (2, C) before and after. Seconds
        are the processor's: other work on the machine does not stretch them.
    """
    truth = problem.truth([number, TRUTH])
    net = problem.net(setting["net"])
    before = class_accuracies(net, truth)
    started = time.process_time()
    outcome = hs.operate(net, training_data=problem.draw(TRAINING, [number, TRAIN]), **operation)
    seconds = time.process_time() - started
    after = class_accuracies(net, truth)
    tests = outcome.findings.tests
    run = {
        "run": number,
        "kept": any(record.accepted for record in outcome.iterations),
        "sigma": [float(before.std()), float(after.std())],
        "accuracy": [float(np.mean(problem.often * rates)) for rates in (before, after)],
        "worst": [float(before.min()), float(after.min())],
        "difference": tests.sigma.difference,
        "interval": list(tests.sigma.interval),
        "verdict": outcome.verdict.outcome,
        "churn": tests.churn,
        "seconds": seconds,
    }
    return run, outcome, np.stack([before, after])


def config_of(setting: Setting, number: int, **options: Any) -> hs.SurgeryConfig:
    """The default settings, with options and with the directions that the setting names, if any."""
    return hs.SurgeryConfig(seed=number, **options, **{k: v for k, v in setting.items() if k == "directions"})


def parts(problem: Problem, setting: Setting, number: int) -> dict[str, hs.LabelledSet]:
    """Calibration and held-out images of a run."""
    heldout = setting.get("heldout", max(setting["per_class"], HELDOUT))
    return {
        "calibration_data": problem.draw(setting["per_class"], [number, CALIBRATE]),
        "heldout_data": problem.draw(heldout, [number, HOLD]),
    }


def change(runs: list[Run], name: str) -> list[float]:
    """After minus before of a true figure, in each run."""
    return [run[name][1] - run[name][0] for run in runs]


def covered(run: Run, truth: float) -> bool:
    """Whether the interval of Δσ holds the truth."""
    low, high = run["interval"]
    return bool(low <= truth <= high)


def common_figures(runs: list[Run], budget: float) -> Figures:
    """What the rows of several cases share.

    "Better" is false if true σ did not fall. "Worse" is false if it fell and the true loss of
    accuracy is within the budget.
    """
    spread, accuracy = change(runs, "sigma"), change(runs, "accuracy")
    better = [run["verdict"] == "better" for run in runs]
    worse = [run["verdict"] == "worse" for run in runs]
    inside = [covered(run, truth) for run, truth in zip(runs, spread, strict=True)]
    return {
        "kept": share([run["kept"] for run in runs]),
        "σ before": average([run["sigma"][0] for run in runs]),
        "Δσ": average(spread),
        "Δaccuracy": average(accuracy),
        "covered": share(inside),
        "covered if kept": share([hit for hit, run in zip(inside, runs, strict=True) if run["kept"]]),
        "better": share(better),
        "worse": share(worse),
        "false better": share([said and d >= 0 for said, d in zip(better, spread, strict=True)]),
        "false worse": share(
            [said and d < 0 and a >= -budget for said, d, a in zip(worse, spread, accuracy, strict=True)]
        ),
        "churn": average([run["churn"] for run in runs]),
        "seconds": average([run["seconds"] for run in runs], unit="s"),
    }


def null_run(setting: Setting, number: int) -> Run:
    """A default operation where there is nothing to gain."""
    problem = equal_problem()
    images = parts(problem, setting, number)
    return measured(problem, setting, number, **images, config=config_of(setting, number))[0]


def null_summary(_: Setting, runs: list[Run]) -> Figures:
    """How often a step is kept, and what it does to σ."""
    return common_figures(runs, hs.SurgeryConfig().budget)


def unequal_run(setting: Setting, number: int) -> Run:
    """A default operation on a model whose true σ is about 6 pp."""
    problem = unequal_problem([number, MAKE])
    images = parts(problem, setting, number)
    config = config_of(setting, number, budget=setting["budget"])
    return measured(problem, setting, number, **images, config=config)[0]


def skewed_run(setting: Setting, number: int) -> Run:
    """The same with a few frequent and many rare classes, as many of each in both sets."""
    problem = skewed_problem([number, MAKE])
    images = parts(problem, setting | {"heldout": setting["per_class"]}, number)
    config = config_of(setting, number, budget=setting["budget"])
    return measured(problem, setting, number, **images, config=config)[0]


def unequal_summary(setting: Setting, runs: list[Run]) -> Figures:
    """What is gained, and whether budget and interval hold."""
    budget = setting["budget"]
    overrun = [-lost > budget + TOLERANCE for lost in change(runs, "accuracy")]
    return {"overrun": share(overrun)} | common_figures(runs, budget)


def targets_run(setting: Setting, number: int) -> Run:
    """Targets for the weakest class or two; in half of the runs, protected classes are named."""
    problem = unequal_problem([number, MAKE])
    base = class_accuracies(problem.net(setting["net"]), problem.truth([number, TRUTH]))
    weak = np.argsort(base)[: 1 + number % 2]
    wanted = {NAMES[j]: float(min(base[j] + setting["gain"], 0.99)) for j in weak}
    others = [name for name in NAMES if name not in wanted]
    chosen = np.random.default_rng([number, CHOOSE]).choice(others, size=3, replace=False).tolist()
    protect = tuple(chosen) if number // 2 % 2 else ()
    config = config_of(setting, number, targets=wanted, protect=protect, max_drop=MAX_DROP)
    images = parts(problem, setting, number)
    try:
        run, outcome, truth = measured(problem, setting, number, **images, config=config)
    except hs.InputError as error:
        return {"run": number, "refused": str(error)}
    claims = []
    for kind, name, said in stated(outcome):
        j = NAMES.index(name)
        least = wanted[name] if kind == "target" else truth[0, j] - MAX_DROP
        claims.append({"kind": kind, "class": name, "said": said, "above": float(truth[1, j] - least)})
    return run | {"claims": claims}


def targets_summary(_: Setting, runs: list[Run]) -> Figures:
    """How often it is said that a promise is kept, and how often that is true."""
    done = [run for run in runs if "claims" in run]
    figures: Figures = {"refused": share([run not in done for run in runs])}
    for kind in ("target", "protected"):
        claims = [claim for run in done for claim in run["claims"] if claim["kind"] == kind]
        said = [claim for claim in claims if claim["said"]]
        figures |= {
            f"{kind}: said": share([claim["said"] for claim in claims]),
            f"{kind}: true of these": share([claim["above"] >= 0 for claim in said]),
            f"{kind}: within 0.2 pp": share([claim["above"] >= -TOLERANCE for claim in said]),
            f"{kind}: true of all": share([claim["above"] >= 0 for claim in claims]),
        }
    lost = [-value > hs.SurgeryConfig().budget + TOLERANCE for value in change(done, "accuracy")]
    return figures | {"overrun": share(lost), "seconds": average([run["seconds"] for run in done], unit="s")}


def folds_run(setting: Setting, number: int) -> Run:
    """All images in five folds, and beside it half of them held out."""
    problem = unequal_problem([number, MAKE])
    images = problem.draw(setting["per_class"], [number, CALIBRATE])
    config = config_of(setting, number)
    calibration, heldout = hs.stratified_split(images, seed=number)
    half, _, _ = measured(problem, setting, number, calibration_data=calibration, heldout_data=heldout, config=config)
    run, _, _ = measured(problem, setting, number, calibration_data=images, folds=FOLDS, config=config)
    return run | {"half": half}


def folds_summary(setting: Setting, runs: list[Run]) -> Figures:
    """Coverage of the interval from folds, its length, and the same with half held out."""
    halves = [run["half"] for run in runs]
    budget = hs.SurgeryConfig().budget
    figures = common_figures(runs, budget)
    figures |= {f"half: {name}": value for name, value in common_figures(halves, budget).items() if name != "σ before"}
    lengths = [[high - low for low, high in (run["interval"], run["half"]["interval"])] for run in runs]
    figures["length / half's"] = average([a / b for a, b in lengths if a > 0 and b > 0], unit="")
    return figures


def digits_run(setting: Setting, seed: int) -> Run:
    """The demo; truth is not known, so held-out images stand for it."""
    net, data = digits_net(seed)
    started = time.process_time()
    outcome = hs.operate(
        net,
        training_data=data.training,
        calibration_data=data.calibration,
        heldout_data=data.heldout,
        config=config_of(setting, seed),
    )
    before, after = outcome.findings.heldout.metrics()
    return {
        "run": seed,
        "kept": any(record.accepted for record in outcome.iterations),
        "sigma": [before.sigma, after.sigma],
        "accuracy": [before.accuracy, after.accuracy],
        "verdict": outcome.verdict.outcome,
        "seconds": time.process_time() - started,
    }


def digits_summary(_: Setting, runs: list[Run]) -> Figures:
    """The mean reduction of σ, and what it costs."""
    return {
        "σ before": average([run["sigma"][0] for run in runs]),
        "σ after": average([run["sigma"][1] for run in runs]),
        "Δσ / σ": average([run["sigma"][1] / run["sigma"][0] - 1 for run in runs], unit="%"),
        "Δaccuracy": average(change(runs, "accuracy")),
        "better": share([run["verdict"] == "better" for run in runs]),
        "seconds": average([run["seconds"] for run in runs], unit="s"),
    }


def rows(**values: Sequence[Any]) -> list[Setting]:
    """Settings with every combination of the values; the first name changes slowest."""
    found: list[Setting] = [{}]
    for name, several in values.items():
        found = [row | {name: value} for row in found for value in several]
    return found


HIDDEN = ["hidden"]
CASES = {
    "null": Case(
        rows(net=HIDDEN, per_class=[100, 300, 1000]) + rows(net=["linear"], per_class=[100]), null_run, null_summary
    ),
    "unequal": Case(
        rows(net=HIDDEN, per_class=[36, 100, 300, 1000], budget=[0.0, 0.002, 0.005])
        + rows(net=HIDDEN, per_class=[100], budget=[0.002], heldout=[36]),
        unequal_run,
        unequal_summary,
    ),
    "skewed": Case(rows(net=HIDDEN, per_class=[100, 300], budget=[0.0, 0.002, 0.005]), skewed_run, unequal_summary),
    "targets": Case(rows(net=HIDDEN, per_class=[100, 300], gain=[0.03, 0.06]), targets_run, targets_summary),
    "folds": Case(rows(net=HIDDEN, per_class=[72, 200, 600]), folds_run, folds_summary),
    "digits": Case([{}], digits_run, digits_summary, runs=8),
}
