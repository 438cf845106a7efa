"""`hessian-surgery apply` and `revert`: patch a checkpoint file, or undo the patch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.options import OutputFile, Patch
from hessian_surgery.cli.output import print_notes
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch


@dataclass(frozen=True, kw_only=True)
class ApplyOptions:
    """The options of `apply`."""

    base: Annotated[Path, typer.Argument(help="File that the patch was made for.")]
    patch: Patch
    out: OutputFile


@dataclass(frozen=True, kw_only=True)
class RevertOptions:
    """The options of `revert`."""

    patched: Annotated[Path, typer.Argument(help="The patched file.")]
    patch: Patch
    out: OutputFile


def apply(options: ApplyOptions) -> None:
    """Patch a checkpoint file."""
    apply_patch(options.base, options.patch, options.out)
    print_notes([f"patched file: {options.out}"])


def revert(options: RevertOptions) -> None:
    """Get the original checkpoint file back, byte for byte."""
    revert_patch(options.patched, options.patch, options.out)
    print_notes([f"original file: {options.out}"])
