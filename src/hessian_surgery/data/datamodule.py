"""A Lightning data module's loaders as labelled sets."""

from typing import Any

from hessian_surgery.data.labelled import LabelledSet, as_labelled
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError

# The loaders of a data module, by the part that they read.
LOADERS = {"train": "train_dataloader", "validation": "val_dataloader", "test": "test_dataloader"}
# Where Lightning's own loaders are, which say only that there is none.
LIGHTNING = ("lightning", "pytorch_lightning")


def is_datamodule(found: Any) -> bool:
    """Whether something is a data module of Lightning's, or works as one."""
    return all(callable(getattr(found, name, None)) for name in (*LOADERS.values(), "prepare_data", "setup"))


def datamodule_sets(module: Any) -> dict[str, LabelledSet]:
    """The sets that a data module's loaders read, by part; a loader that it lacks is left out."""
    module.prepare_data()
    for stage in ("fit", "test"):
        module.setup(stage)
    found = {}
    for part, name in LOADERS.items():
        if str(getattr(type(module), name).__module__).partition(".")[0] not in LIGHTNING:
            loader = getattr(module, name)()
            if isinstance(loader, dict | list | tuple):
                raise InputError(f"data: {name}() gives a {type(loader).__name__}; it must give one DataLoader")
            found[part] = as_labelled(loader)
    return found


def datamodule_parts(module: Any, seed: int = 0) -> dict[str, LabelledSet]:
    """The three parts of `operate`'s data, by argument, from a Lightning data module.

    Args:
        module: its train loader gives the training data, its validation loader the calibration
            data, and its test loader the held-out data. Of the last two it may lack one: the other
            is then halved.
        seed: fixes the halves.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> def loader(part):
        ...     return DataLoader(TensorDataset(part.inputs(), part.labels), 32)
        >>> class Points:  # a lightning.LightningDataModule has the same methods
        ...     def prepare_data(self): pass
        ...     def setup(self, stage): pass
        ...     def train_dataloader(self): return loader(train)
        ...     def val_dataloader(self): return loader(calibration)
        ...     def test_dataloader(self): return loader(heldout)
        >>> hs.operate(model, **hs.datamodule_parts(Points())).verdict.outcome
        'better'
    """
    if not is_datamodule(module):
        raise InputError(f"module: got a {type(module).__name__}; give a LightningDataModule")
    found = datamodule_sets(module)
    if "train" not in found:
        raise InputError("module: it has no train_dataloader; directions come from training data, so give one")
    judged = [found[part] for part in ("validation", "test") if part in found]
    if not judged:
        raise InputError("module: it has no val_dataloader and no test_dataloader; give one of the two")
    calibration, heldout = judged if len(judged) == 2 else stratified_split(judged[0], (0.5, 0.5), seed)
    return {"training_data": found["train"], "calibration_data": calibration, "heldout_data": heldout}
