"""`predictors` as a command: a zoo of small nets, or models of the user's; earlier studies; the files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessian_surgery.cli.inputs import choose_config, choose_device, open_given
from hessian_surgery.cli.output import notes, print_json, print_notes
from hessian_surgery.cli.progress import BarObserver
from hessian_surgery.comparison.entries import parse_entry
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, read_json, write_json, write_text
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.operate import environment
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.studies.predictors import Case, examine_model, load_cases, make_case
from hessian_surgery.studies.relations import Predictors, relate
from hessian_surgery.studies.scatter import describe, draw, to_markdown
from hessian_surgery.studies.zoo import RECIPES, grow

# Options that mean nothing without a model.
OWN = ("checkpoint", "loss", "mean", "std")


def predict_given(given: dict[str, Any]) -> None:
    """Study what a command's options ask for, write the files and say what was found."""
    method, out = parse_entry(given["method"]).name, given["out"]
    earlier = [case for path in given["earlier"] or () for case in load_cases(path, method)]
    unused = dict.fromkeys(("training_data", "calibration_data", "heldout_data"))
    given = given | unused | {"preset": "default", "method": method}
    stray = next((name for name in OWN if given[name] is not None), None)
    if given["model"] is None and stray is not None:
        raise InputError(f"model: missing; --{stray} is about a model of your own")
    source = _own if given["model"] else _files if given["diagnosis"] or given["comparison"] else _zoo
    with claimed(out):
        result = relate([*earlier, *source(given)], method, given["seed"])
        content = {
            "study": "predictors",
            "seed": given["seed"],
            **result.as_dict(),
            "environment": environment(choose_device(given["device"])),
        }
        write_predictors(out, result, content)
    if given["as_json"]:
        print_json(content)
    else:
        print(describe(result))
    notes().print(f"predictors.json, .md and .svg: {out}", highlight=False)


def write_predictors(folder: Path, result: Predictors, content: dict[str, Any]) -> None:
    """Write the tables, the figure and, last, `predictors.json`."""
    figure = draw(result)
    for suffix in ("svg", "png"):
        save_figure(figure, folder / f"predictors.{suffix}")
    write_text(folder / "predictors.md", to_markdown(result))
    write_json(folder / "predictors.json", content)


def _zoo(given: dict[str, Any]) -> Iterator[Case]:
    """The nets of the zoo one by one, with a line for each."""
    spec, device, count = given["data"] or "digits", choose_device(given["device"]), given["nets"]
    if not 0 <= count <= len(RECIPES):
        raise InputError(f"nets: got {count}; there are recipes for 0 to {len(RECIPES)}")
    for i, recipe in enumerate(RECIPES[:count], start=1):
        recipe = replace(recipe, seed=recipe.seed + given["seed"])
        notes().print(f"{i}/{count} {_group(spec)}: {recipe}", highlight=False)
        net, parts = grow(recipe, spec, given["per_class"], given["image_size"])
        with BarObserver(notes()) as observer:
            yield examine_model(
                net.to(device),
                parts,
                f"smallnet, {_group(spec)}, {recipe}",
                _group(spec),
                method=given["method"],
                splits=given["splits"],
                config=SurgeryConfig(loss=recipe.loss, seed=recipe.seed),
                observer=observer,
            )


def _own(given: dict[str, Any]) -> Iterator[Case]:
    """A model of the user's, diagnosed and compared here."""
    opened = open_given(given)
    print_notes(opened.remarks)
    parts, cap, file = opened.parts, given["per_class"], given["checkpoint"]
    if cap is not None:
        capped = {name: cap_per_class(getattr(parts, name), cap, given["seed"]) for name in ("calibration", "heldout")}
        parts = replace(parts, **capped)
    with BarObserver(notes()) as observer:
        yield examine_model(
            opened.model,
            parts,
            ", ".join((given["model"], _group(given["data"]), *([file.stem] if file else []))),
            _group(given["data"]),
            method=given["method"],
            splits=given["splits"],
            config=choose_config(given),
            observer=observer,
        )


def _files(given: dict[str, Any]) -> Iterator[Case]:
    """Models that were diagnosed and compared before: pairs of files."""
    diagnoses, comparisons = given["diagnosis"] or (), given["comparison"] or ()
    if len(diagnoses) != len(comparisons):
        raise InputError(f"diagnosis: got {len(diagnoses)}, and {len(comparisons)} of --comparison; give them in pairs")
    for one, other in zip(diagnoses, comparisons, strict=True):
        diagnosis, comparison = read_json(one, "diagnosis"), read_json(other, "comparison")
        if "structure" not in diagnosis or "bias_shares" not in comparison:
            raise InputError(f"diagnosis: {one} and {other} are not what diagnose --json and compare --json print")
        named = comparison["inputs"]
        group = _group(named.get("data", other.stem))
        yield make_case(f"{named.get('model', 'smallnet')}, {group}", group, diagnosis, comparison, given["method"])


def _group(spec: str) -> str:
    """The data set that a spec names, without where it lies."""
    _, _, place = spec.partition(":")
    return Path(place).name or spec
