"""`hessian-surgery apply` and `revert`: patch a checkpoint file, or undo the patch."""

from hessian_surgery.cli.output import print_notes
from hessian_surgery.cli.run_options import ApplyOptions, RevertOptions
from hessian_surgery.weights.apply_patch import apply_patch, revert_patch


def apply(options: ApplyOptions) -> None:
    """Patch a checkpoint file."""
    apply_patch(options.base, options.patch, options.out)
    print_notes([f"patched file: {options.out}"])


def revert(options: RevertOptions) -> None:
    """Get the original checkpoint file back, byte for byte."""
    revert_patch(options.patched, options.patch, options.out)
    print_notes([f"original file: {options.out}"])
