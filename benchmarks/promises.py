"""Whether the tool keeps its promises, where the truth is known.

python -m benchmarks.promises --cases null,unequal --runs 100 --processes 2

Truth: a net's true class accuracies are those on 20,000 fresh images of each class, which nothing
else sees (`benchmarks/counted_images.py`). True σ is their population standard deviation, true
accuracy their mean by how often classes are drawn; a true change is that of the net as it is
delivered, on the same fresh images. It is known to about 0.1 pp.

Cases, and what is aimed at:

- null: ten classes that are exactly equal, and the Bayes rule. A step is kept in at most 5 % of
  runs (plus three standard errors). True σ starts at 0, so every kept step makes it worse.
- unequal: true σ is about 6 pp. The true loss of accuracy is within the budget, and the 95 %
  interval of Δσ covers the true change.
- skewed: the same with a few frequent and many rare classes, and as many held-out images.
- targets: for the weakest class or two, with protected classes. If it is said that a target is
  reached or a class kept, that is true in at least 90 % of cases.
- folds: all images in five folds, beside half of them held out: coverage, and relative length.
- digits: the demo with eight seeds. σ on held-out images falls by half at no loss of accuracy.
"""

import argparse
import json
import multiprocessing
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import hessian_surgery as hs
from benchmarks.figures import as_text
from benchmarks.promise_cases import CASES, Case, Run, Setting
from hessian_surgery.files import write_text

RESULTS = Path(__file__).parent / "results" / "promises.json"


def one_thread() -> None:
    """Let a worker use one core."""
    torch.set_num_threads(1)


def work(job: tuple[str, Setting, int]) -> Run:
    """One run, in a worker."""
    name, setting, number = job
    return rounded(CASES[name].run(setting, number))


def rounded(value: Any) -> Any:
    """The same with every float rounded to six decimals, so that the file stays small."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def row_name(setting: Setting) -> str:
    """A setting in words, such as `net hidden, per_class 100`."""
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "all"


def simulate(name: str, settings: list[Setting], runs: int, pool: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run a case; yield each row's name and content as soon as its runs are done."""
    case = CASES[name]
    runs = case.runs or runs
    found = pool.imap(work, [(name, setting, number) for setting in settings for number in range(runs)])
    for setting in settings:
        done: list[Run] = []
        for number in range(runs):
            done.append(next(found))
            print(f"\r{name}, {row_name(setting)}: {number + 1} of {runs} ", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        yield row_name(setting), {"setting": setting, "figures": case.summary(setting, done), "runs": done}


def chosen_settings(case: Case, sizes: list[int] | None, directions: str | None) -> list[Setting]:
    """The rows of a case, or those with one of the sizes; along other directions, if named."""
    other = {"directions": directions} if directions else {}
    return [row | other for row in case.settings if not sizes or row.get("per_class", sizes[0]) in sizes]


def show(name: str, row: str, content: dict[str, Any]) -> None:
    """Print a row: one figure after the other."""
    figures = " | ".join(f"{key} {as_text(figure)}" for key, figure in content["figures"].items())
    print(f"{name} | {row} | {figures}", flush=True)


def save(path: Path, results: dict[str, Any]) -> None:
    """Write the file, with one line for each run."""

    def block(content: dict[str, Any], inner: Callable[[Any], str]) -> str:
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {inner(value)}" for key, value in content.items()) + "\n}"

    def row(content: dict[str, Any]) -> str:
        runs = ",\n".join(json.dumps(run) for run in content["runs"])
        return block({k: v for k, v in content.items() if k != "runs"}, json.dumps)[:-2] + f',\n"runs": [\n{runs}\n]}}'

    write_text(path, block(results, lambda case: block(case, row)) + "\n")


def main() -> None:
    """Simulate, print and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="which to run; the file keeps the others")
    parser.add_argument("--runs", type=int, default=100, help="of each row; digits has eight")
    parser.add_argument("--sizes", help="only rows with these images per class, such as 100,300")
    parser.add_argument("--directions", help="rows along other directions than the default's, such as class-gradients")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")] if given.sizes else None
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    with multiprocessing.get_context("spawn").Pool(given.processes, one_thread) as pool:
        for name in given.cases.split(","):
            made_with = {"version": hs.__version__, "torch": torch.__version__, "python": platform.python_version()}
            for row, content in simulate(name, chosen_settings(CASES[name], sizes, given.directions), given.runs, pool):
                show(name, row, content)
                results.setdefault(name, {})[row] = content | {"made with": made_with}
                save(given.out, results)


if __name__ == "__main__":
    main()
