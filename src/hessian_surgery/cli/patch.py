"""`hessian-surgery apply` and `revert`: patch a checkpoint file or folder, or undo the patch."""

from pathlib import Path

from hessian_surgery.cli.output import print_notes
from hessian_surgery.cli.run_options import ApplyOptions, RevertOptions
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch


def apply(options: ApplyOptions) -> None:
    """Patch a checkpoint file, or a model folder."""
    apply_patch(options.base, options.patch, options.out)
    print_notes([f"patched {_kind(options.out)}: {options.out}"])


def revert(options: RevertOptions) -> None:
    """Get the original checkpoint file or model folder back, byte for byte."""
    revert_patch(options.patched, options.patch, options.out)
    print_notes([f"original {_kind(options.out)}: {options.out}"])


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "file"
