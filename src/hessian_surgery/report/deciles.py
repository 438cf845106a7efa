"""Many classes in ten groups: what the groups are, in a sentence, and their rows."""

from hessian_surgery.evidence.deciles import ClassGroup
from hessian_surgery.operation.findings import Findings

HEAD = ("group", "classes", "when formed %", "before %", "after %", "change pp [95 %]")
# The column that says what the groups were formed by.
FORMED = 2


def decile_note(findings: Findings) -> str:
    """Say what the groups were formed on, and what their figures are from."""
    formed = "on the calibration images"
    reported = "on the held-out images"
    if findings.folds is not None:
        # Then there is one set of images, and it does both.
        formed = "on the same images, so that chance makes the first look weaker and the last stronger than they are"
        reported = "each image after an operation that did not see it"
    return (
        f"All {len(findings.heldout.classes):,} classes in ten groups, by their accuracy before the operation "
        f"{formed}. Accuracies are means over the classes of a group, {reported}; brackets are 95 % intervals."
    )


def group_name(group: ClassGroup, groups: int) -> str:
    """A group's number; the first and the last say which end they are."""
    ends = {1: ", weakest", groups: ", strongest"}
    return f"{group.group}{ends.get(group.group, '')}"


def decile_rows(groups: tuple[ClassGroup, ...]) -> list[tuple[str, ...]]:
    """The groups as text, in the columns of `HEAD`."""
    rows = []
    for group in groups:
        low, high = (100 * end for end in group.formed)
        cells = [group_name(group, len(groups)), f"{len(group.members)}", f"{low:.0f}–{high:.0f}"]
        pairs = ((group.before, group.before_interval), (group.after, group.after_interval))
        cells += [f"{100 * value:.1f} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]" for value, ends in pairs]
        rows.append((*cells, str(group.change).replace(" pp", "")))
    return rows
