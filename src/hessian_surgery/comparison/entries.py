"""Entries of a comparison, by name: a method, or a chain of methods such as `focal+spikes`."""

from dataclasses import dataclass

from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import FROM_LOGITS, POSTHOC, PosthocMethod, step_along
from hessian_surgery.errors import InputError
from hessian_surgery.operation.config import Family

# The default operation, whole, with each choice of `SurgeryConfig.directions`.
OPERATIONS: dict[str, Family] = {
    "operate": "refit",
    "operate:class-gradients": "class-gradients",
    "operate:spikes": "spikes",
    "operate:both": "both",
}
# Whole operations, all iterations: the default operation and the paper's loop.
WHOLE = (*OPERATIONS, "loop")
# The family of directions that a method moves the weights along.
FAMILIES = {
    "spikes": "spikes",
    "class-gradients": "class-gradients",
    "random": "random",
    "one-step": "class-gradients",
    "one-step:spikes": "spikes",
}
# Methods whose name may give a number of directions, as in `spikes:20`.
COUNTED = ("spikes", "random")
# What is compared unless methods are named. The loop takes longer than all of these together.
DEFAULT = (*POSTHOC, "operate")
# Shorter names for chains.
ALIASES = {"bias": "class-bias"}


@dataclass(frozen=True)
class Entry:
    """What is compared: at most one training, then post-hoc methods, then at most one training.

    Attributes:
        name: the name that the user gave, with short names spelled out.
        trunk: the training that comes first, or "".
        methods: names of post-hoc methods, in order; or one whole operation.
        last: the training that comes last, or "".
    """

    name: str
    trunk: str
    methods: tuple[str, ...]
    last: str

    @property
    def whole(self) -> str:
        """The name of its whole operation, or ""."""
        return next((name for name in self.methods if name in WHOLE), "")


def parse_entry(name: str) -> Entry:
    """Make an entry from its name.

    Raises:
        InputError: the name is unknown, or the chain cannot be run.
    """
    stages = [ALIASES.get(stage, stage) for stage in name.split("+")]
    full = "+".join(stages)
    for stage in stages:
        if stage not in (*FINETUNES, *WHOLE, "nothing"):
            posthoc_method(stage)
    trunk = stages.pop(0) if stages[0] in FINETUNES else ""
    last = stages.pop() if stages and stages[-1] in FINETUNES else ""
    if any(stage in FINETUNES for stage in stages):
        raise InputError(f"methods: {name!r} trains in the middle; train first or last")
    whole = any(stage in WHOLE for stage in stages)
    if (len(stages) > 1 and "last-layer" in stages) or (whole and len(stages) > 1):
        alone = ", ".join(("last-layer", *WHOLE))
        raise InputError(f"methods: got {name!r}; {alone} can only be chained with trainings")
    return Entry(full, trunk, tuple(stage for stage in stages if stage != "nothing"), last)


def posthoc_method(name: str) -> PosthocMethod:
    """Return a post-hoc method by its name; `spikes:20` takes the first 20 spikes."""
    if name in POSTHOC:
        return POSTHOC[name]
    base, colon, _ = name.partition(":")
    if not colon or base not in COUNTED:
        known = ", ".join(("nothing", *POSTHOC, *WHOLE, *FINETUNES))
        raise InputError(f"methods: got {name!r}; give some of {known}, or chains such as focal+spikes")
    return step_along(FAMILIES[base], wanted_count(name))


def wanted_count(name: str) -> int | None:
    """Return how many directions a method's name asks for; None if it gives no number."""
    _, colon, count = name.partition(":")
    if name in POSTHOC or not colon:
        return None
    if not count.isdecimal() or int(count) < 1:
        raise InputError(f"methods: got {name!r}; give a whole number of directions, such as spikes:20")
    return int(count)


def family_of(name: str) -> str | None:
    """Return the family that a method moves the weights along; None if it moves along none."""
    return FAMILIES.get(name, FAMILIES.get(name.partition(":")[0]))


def require_logits_only(entries: tuple[Entry, ...]) -> None:
    """Raise an InputError if an entry needs more than cached logits."""
    for entry in entries:
        others = [name for name in (entry.trunk, *entry.methods, entry.last) if name and name not in FROM_LOGITS]
        if others:
            raise InputError(f"methods: {others[0]} needs the model; from logits you can have {', '.join(FROM_LOGITS)}")
