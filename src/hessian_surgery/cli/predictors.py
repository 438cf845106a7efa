"""`hessian-surgery study predictors`: find what predicts the gain, over many models."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessian_surgery.cli.configs import choose_search
from hessian_surgery.cli.folders import Output, writing
from hessian_surgery.cli.inputs import choose_device, open_model
from hessian_surgery.cli.output import notes, print_json, print_notes, print_text
from hessian_surgery.cli.study_options import PredictorsOptions
from hessian_surgery.comparison.entries import parse_entry
from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.data.splits import cap_per_class
from hessian_surgery.errors import InputError
from hessian_surgery.files import write_json, write_text
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.environment import environment
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.page_shapes import CompareShape, DiagnosisShape
from hessian_surgery.report.figure_style import save_figure
from hessian_surgery.stored import blamed_on, checked, read_json
from hessian_surgery.studies.model_zoo import RECIPES, train_net
from hessian_surgery.studies.predictors import Case, examine_model, load_cases, make_case
from hessian_surgery.studies.predictors_report import describe, draw, to_markdown
from hessian_surgery.studies.rank_correlations import Predictors, relate

# Options that mean nothing without a model.
ABOUT_A_MODEL = ("checkpoint", "loss", "mean", "std", "training_data", "calibration_data", "heldout_data")

# What is written, beside files of other studies.
OUTPUT = Output(
    "study of predictors", tuple(f"predictors.{kind}" for kind in ("svg", "png", "md", "json")), alone=False
)


def study_predictors(options: PredictorsOptions) -> None:
    """Relate what diagnose finds to the gain that compare measures, over many models."""
    method = parse_entry(options.method).name
    options = replace(options, method=method)
    earlier = [case for path in options.earlier or () for case in load_cases(path, method)]
    stray = next((name for name in ABOUT_A_MODEL if getattr(options, name) is not None), None)
    if options.model is None and stray is not None:
        option = f"--{stray.replace('_', '-')}"
        raise InputError(f"model: missing; {option} is about a model of your own; give --model, or leave it out")
    source = _zoo
    if options.model is not None:
        source = _own
    elif options.diagnosis or options.comparison:
        source = _files
    with writing(options.out, OUTPUT):
        result = relate([*earlier, *source(options)], method, options.seed)
        content = {
            "study": "predictors",
            "seed": options.seed,
            **result.as_dict(),
            "environment": environment(choose_device(options.device)),
        }
        write_predictors(options.out, result, content)
    if options.as_json:
        print_json(content)
    else:
        print_text(describe(result))
    print_notes([f"predictors.json, .md and .svg: {options.out}"])


def write_predictors(folder: Path, result: Predictors, content: dict[str, Any]) -> None:
    """Write the tables and the figure, and last `predictors.json`."""
    figure = draw(result)
    for suffix in ("svg", "png"):
        save_figure(figure, folder / f"predictors.{suffix}")
    write_text(folder / "predictors.md", to_markdown(result))
    write_json(folder / "predictors.json", content)


def _zoo(options: PredictorsOptions) -> Iterator[Case]:
    """Train and study the small nets one by one, with a line for each."""
    spec = options.data or "digits"
    group = _group(spec)
    device = choose_device(options.device)
    if not 0 <= options.nets <= len(RECIPES):
        raise InputError(f"nets: got {options.nets}; there are recipes for 0 to {len(RECIPES)}")
    for i, recipe in enumerate(RECIPES[: options.nets], start=1):
        recipe = replace(recipe, seed=recipe.seed + options.seed)
        notes().print(f"{i}/{options.nets} {group}: {recipe}", highlight=False)
        net, parts = train_net(recipe, spec, options.per_class, options.image_size)
        with ShownProgress(notes()) as observer:
            yield examine_model(
                net.to(device),
                parts,
                f"smallnet, {group}, {recipe}",
                group,
                method=options.method,
                splits=options.splits,
                config=SurgeryConfig(search=SpikeSearch(loss=recipe.loss), seed=recipe.seed),
                observer=observer,
            )


def _own(options: PredictorsOptions) -> Iterator[Case]:
    """Diagnose and compare the user's own model."""
    if options.model is None or options.data is None:
        raise InputError("data: missing; give the model's data as --data")
    opened = open_model(options)
    print_notes(opened.remarks)
    parts = opened.parts
    group = _group(options.data)
    if options.per_class is not None:
        capped = {
            name: cap_per_class(getattr(parts, name), options.per_class, options.seed)
            for name in ("calibration", "heldout")
        }
        parts = replace(parts, **capped)
    stem = [options.checkpoint.stem] if options.checkpoint else []
    with ShownProgress(notes()) as observer:
        yield examine_model(
            opened.model,
            parts,
            ", ".join((options.model, group, *stem)),
            group,
            method=options.method,
            splits=options.splits,
            config=SurgeryConfig(search=choose_search(options, SpikeSearch()), seed=options.seed),
            observer=observer,
        )


def _files(options: PredictorsOptions) -> Iterator[Case]:
    """Read models that were diagnosed and compared before, from pairs of files."""
    diagnoses = options.diagnosis or []
    comparisons = options.comparison or []
    if len(diagnoses) != len(comparisons):
        raise InputError(f"diagnosis: got {len(diagnoses)}, and {len(comparisons)} of --comparison; give them in pairs")
    for one, other in zip(diagnoses, comparisons, strict=True):
        diagnosis = read_json(one, "diagnosis")
        comparison = read_json(other, "comparison")
        if "structure" not in diagnosis or "bias_shares" not in comparison:
            raise InputError(
                f"diagnosis: {one} and {other} are not what diagnose --spikes auto --json and compare --json print; "
                "give their output"
            )
        checked(diagnosis, f"diagnosis: {one}", DiagnosisShape)
        checked(comparison, f"comparison: {other}", CompareShape)
        named = comparison.get("inputs")
        named = {key: str(value) for key, value in named.items()} if isinstance(named, dict) else {}
        group = _group(named.get("data", other.stem))
        title = f"{named.get('model', 'smallnet')}, {group}"
        with blamed_on(f"comparison: {other} (or {one})"):
            case = make_case(title, group, diagnosis, comparison, options.method)
        yield case


def _group(spec: str) -> str:
    """Return the name of the data set in a spec, without its folder."""
    _, _, place = spec.partition(":")
    return Path(place).name or spec
