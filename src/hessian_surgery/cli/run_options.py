"""The options of `demo`, and of the commands for finished runs and patches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.groups import OUTPUT, flag, option
from hessian_surgery.cli.options import Figures, Json, OutputFile, Patch, RunFolder, Seed


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of `demo`."""

    out: Annotated[Path, option(OUTPUT, "Run folder; it replaces an earlier demo there.", "DIR")] = Path("runs/demo")
    seed: Seed = 0
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `report`."""

    run: RunFolder
    markdown: Annotated[bool, flag(OUTPUT, "Print Markdown instead of a table.", "--markdown")] = False
    html: Annotated[bool, flag(OUTPUT, "Write report.html again.", "--html")] = False
    comparison: Annotated[
        Path | None,
        option(
            OUTPUT,
            "With --html: show the front of the comparison in this folder too.",
            "DIR",
            name="--compare",
            default="no front of a comparison",
        ),
    ] = None
    figures: Figures = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """The options of `card`."""

    run: RunFolder


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    """The options of `apply`."""

    base: Annotated[Path, typer.Argument(metavar="BASE", help="File or model folder that the patch was made for.")]
    patch: Patch
    out: OutputFile


@dataclass(frozen=True, kw_only=True)
class RevertOptions:
    """The options of `revert`."""

    patched: Annotated[Path, typer.Argument(metavar="PATCHED", help="The patched file or model folder.")]
    patch: Patch
    out: OutputFile


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `export`."""

    run: RunFolder
    out: Annotated[Path, option(OUTPUT, "File to write: .onnx, or .pt2 for torch.export; it must not exist.", "FILE")]
    base: Annotated[
        Path | None,
        option(
            OUTPUT,
            "Change only the biases in this ONNX file of the starting model.",
            "FILE",
            name="--from",
            default="none; the whole model is exported",
        ),
    ] = None
    as_json: Json = False
