"""Entries of a comparison: a method, or a chain of them such as `focal+surgery`, by name."""

from dataclasses import dataclass

from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import FROM_LOGITS, POSTHOC, Posthoc, along
from hessian_surgery.errors import InputError

# Whole operations, rounds and all: the paper's loop, and what `operate` does by default.
LOOP, OPERATE = "loop", "operate"
WHOLE = (OPERATE, LOOP)
# Which family of directions a method moves weights along.
FAMILIES = {
    "surgery": "spikes",
    "class-gradients": "class-gradients",
    "random": "random",
    "planned": "class-gradients",
    "planned-spikes": "spikes",
}
DEFAULT = (*POSTHOC, *WHOLE)
# Shorter names for chains.
ALIASES = {"bias": "class-bias"}


@dataclass(frozen=True)
class Entry:
    """What is compared: at most one training, then post-hoc methods, then at most one training.

    Attributes:
        name: as it was asked for.
        trunk: the training that comes first, or "".
        methods: post-hoc methods in order, by name; `loop` and `operate` stand alone.
        last: the training that comes last, or "".
    """

    name: str
    trunk: str
    methods: tuple[str, ...]
    last: str


def parse_entry(name: str) -> Entry:
    """An entry from its name."""
    stages = [ALIASES.get(stage, stage) for stage in name.split("+")]
    full = "+".join(stages)
    for stage in stages:
        if stage not in (*FINETUNES, *WHOLE, "nothing"):
            posthoc(stage)
    trunk = stages.pop(0) if stages[0] in FINETUNES else ""
    last = stages.pop() if stages and stages[-1] in FINETUNES else ""
    if any(stage in FINETUNES for stage in stages):
        raise InputError(f"methods: {name!r} trains in the middle; train first or last")
    whole = any(stage in WHOLE for stage in stages)
    if (len(stages) > 1 and "last-layer" in stages) or (whole and (len(stages) > 1 or last)):
        alone = " and ".join(WHOLE)
        raise InputError(f"methods: {name!r}: last-layer combines with trainings only, {alone} with one before them")
    return Entry(full, trunk, tuple(stage for stage in stages if stage != "nothing"), last)


def posthoc(name: str) -> Posthoc:
    """A post-hoc method from its name; `surgery:20` takes the first 20 spikes."""
    base, colon, _ = name.partition(":")
    if base not in POSTHOC or (colon and base not in ("surgery", "random")):
        known = ", ".join(("nothing", *POSTHOC, *WHOLE, *FINETUNES))
        raise InputError(f"methods: got {name!r}; give some of {known}, or chains such as focal+surgery")
    if not colon:
        return POSTHOC[base]
    return along(FAMILIES[base], wanted_count(name))


def wanted_count(name: str) -> int | None:
    """How many directions a name asks for; None where it does not say."""
    _, colon, count = name.partition(":")
    if not colon:
        return None
    if not count.isdecimal() or int(count) < 1:
        raise InputError(f"methods: got {name!r}; give a whole number of directions, such as surgery:20")
    return int(count)


def require_logits_only(entries: tuple[Entry, ...]) -> None:
    """Refuse what cannot be had from cached logits."""
    for entry in entries:
        foreign = [name for name in (entry.trunk, *entry.methods, entry.last) if name and name not in FROM_LOGITS]
        if foreign:
            raise InputError(f"methods: {foreign[0]} needs the model; with logits there are {', '.join(FROM_LOGITS)}")
