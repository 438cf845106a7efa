"""Pretrained: a Hugging Face classifier, with what prepares its inputs and the folder it is in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.hugging_face import Encoding, as_set, as_sets, open_dataset
from hessian_surgery.data.sources import source_of
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError, calling_it
from hessian_surgery.import_by_name import import_extra, why_not_loaded
from hessian_surgery.model.label_names import check_label_names, label_names, output_names
from hessian_surgery.model.processing import image_processing, text_encoder
from hessian_surgery.short_repr import short_repr
from hessian_surgery.stored import read_json
from hessian_surgery.weights.checkpoint import Checkpoint, read_checkpoint
from hessian_surgery.weights.folder import ADAPTER, INDEX, WEIGHTS

# The classes of transformers that load a model of each kind.
AUTO = {
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}
# What is not fetched from the Hub: weights in other formats, and sub-folders.
NOT_FETCHED = ["*.bin", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*/*"]


@dataclass(frozen=True)
class Pretrained:
    """A classifier of transformers.

    Attributes:
        model: an `AutoModelForImageClassification` or `AutoModelForSequenceClassification`.
        processor: its image processor or tokenizer; None if there is none.
        checkpoint: its weights as its folder holds them; None if it came from memory.

    Example:
        >>> pretrained = hs.Pretrained(bert, tokenizer)  # doctest: +SKIP
        >>> outcome = hs.operate(bert, **pretrained.parts(dataset))  # doctest: +SKIP
    """

    model: nn.Module
    processor: Any = None
    checkpoint: Checkpoint | None = None

    __repr__ = short_repr

    @property
    def encoding(self) -> Encoding:
        """How rows of a data set become the model's inputs."""
        config: Any = self.model.config
        names = output_names(self.model)
        return Encoding(image_processing(self.processor, config), text_encoder(self.processor, config), names)

    def labelled(self, dataset: Any) -> LabelledSet:
        """Make a `LabelledSet` of a `datasets.Dataset`: its texts tokenized, its images prepared.

        Raises:
            InputError: its classes are not the model's, or are in another order.
        """
        return self._named(as_set(dataset, self.encoding))

    def parts(self, data: Any, seed: int = 0) -> dict[str, LabelledSet]:
        """The three parts of `operate`'s data, by argument.

        Args:
            data: a `datasets.DatasetDict`, a folder, or a name on the Hub. Its test part is halved
                into calibration and held-out data.
            seed: fixes the halves.
        """
        which = f"data: {data}" if isinstance(data, str | Path) else "data: it"
        opened = open_dataset(str(data)) if isinstance(data, str | Path) else data
        if not isinstance(opened, Mapping):
            raise InputError(f"{which} is a single set, without train and test parts; use labelled() for each part")
        source = source_of(as_sets(opened, self.encoding), which)
        if source.train is None or source.test is None:
            raise InputError(f"{which} has the parts {list(opened)}; it must have train and test, with labels")
        calibration, heldout = stratified_split(self._named(source.test), (0.5, 0.5), seed)
        return {
            "training_data": self._named(source.train),
            "calibration_data": calibration,
            "heldout_data": heldout,
        }

    def save(self, folder: str | Path) -> None:
        """Write model and processor with `save_pretrained`; `from_pretrained` reads the folder."""
        with quiet_transformers():
            for part in (self.model, self.processor):
                if part is not None:
                    part.save_pretrained(folder)  # type: ignore[operator]

    def _named(self, data: LabelledSet) -> LabelledSet:
        check_label_names(self.model, data.classes)
        return with_label_names(data, self.model)


def with_label_names(data: LabelledSet, module: nn.Module) -> LabelledSet:
    """The same set; classes that are numbers get the model's names, if it has any.

    Raises:
        InputError: there are more such classes than the model has outputs.
    """
    config: Any = module.config
    names = label_names(module)
    count = len(data.classes)
    if data.classes != tuple(str(i) for i in range(count)):
        return data
    if count > config.num_labels:
        raise InputError(
            f"data: its labels go up to {count - 1}, but the model has {config.num_labels} outputs; "
            f"number the classes from 0 to {config.num_labels - 1}"
        )
    if names is None or len(names) < count:
        return data
    return replace(data, classes=names)


def open_pretrained(place: str | Path) -> Pretrained:
    """Open a classifier that `save_pretrained` wrote; code that comes with it is never run.

    Args:
        place: its folder, or its name on the Hub.

    Raises:
        InputError: it is no classifier, its head was never trained, or it cannot be read.

    Example:
        >>> pretrained = hs.open_pretrained("my-model")  # doctest: +SKIP
        >>> outcome = hs.operate(pretrained.model, **pretrained.parts("my-data"))  # doctest: +SKIP
        >>> pretrained.save("patched")  # doctest: +SKIP
    """
    transformers = import_extra("transformers", "model", "hf")
    folder = _local_folder(str(place))
    kind = _kind(folder)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    with calling_it("model", "checkpoint"):
        checkpoint = read_checkpoint(folder)
    with quiet_transformers():
        try:
            model, loaded = getattr(transformers, AUTO[kind]).from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
            )
            processor = _load_processor(transformers, folder, kind, options)
        except Exception as error:  # a folder that is damaged, or made for other code
            raise InputError(f"model: hf:{place} cannot be loaded: {why_not_loaded(error)}") from error
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(
            f"model: hf:{place} has no {missing[0]!r}, so it is no trained classifier; train it on your classes first"
        )
    _refuse_other_tasks(model.config, str(place))
    return Pretrained(model.eval(), processor, replace(checkpoint, module_names=_names_in(model, checkpoint)))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch off transformers' bars and remarks in this block."""
    logging = import_extra("transformers", "model", "hf").utils.logging
    level = logging.get_verbosity()
    shown = logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _local_folder(place: str) -> Path:
    """The folder of a model; one that is named on the Hub is fetched, or found in the cache."""
    folder = Path(place).expanduser()
    if place and folder.is_dir():
        return folder
    if not place or place[0] in "./~" or place.count("/") > 1:
        raise InputError(f"model: {place or 'the folder'} does not exist; give hf:DIR with a folder that does")
    hub = import_extra("huggingface_hub", "model", "hf")
    try:
        return Path(hub.snapshot_download(place, ignore_patterns=NOT_FETCHED))
    except Exception as error:  # no network, no such model, no permission
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"model: {place} is no folder here, and cannot be had from the Hub: {reason}; give a folder"
        ) from error


def _kind(folder: Path) -> str:
    """What the model in a folder is for, by its class."""
    whole = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    if (folder / ADAPTER).is_file() and not whole:
        raise InputError(
            f"model: {folder} holds a peft adapter, not a whole model; load it with peft and operate from Python, or "
            "give a folder of the model after merge_and_unload()"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"model: {folder} has no config.json; give a folder that save_pretrained wrote")
    classes = [str(name) for name in read_json(folder / "config.json", "model").get("architectures") or []]
    kind = next((task for task in AUTO for name in classes if task in name), None)
    if kind is None and (folder / "model" / "config.json").is_file():
        raise InputError(f"model: {folder} is a run; give hf:{folder / 'model'}")
    if kind is None:
        raise InputError(
            f"model: {folder} holds {classes[0] if classes else 'no named class'}; it must be a model for image or "
            "sequence classification"
        )
    return kind


def _load_processor(transformers: Any, folder: Path, kind: str, options: Mapping[str, Any]) -> Any:
    """The image processor or tokenizer of a folder; None if it has none."""
    images = kind == "ForImageClassification"
    marks = ("preprocessor_config.json", "processor_config.json") if images else ("tokenizer_config.json",)
    if not any((folder / name).is_file() for name in marks):
        return None
    loader = transformers.AutoImageProcessor if images else transformers.AutoTokenizer
    return loader.from_pretrained(folder, **options)


def _refuse_other_tasks(config: Any, place: str) -> None:
    """Refuse models whose outputs are not classes that exclude each other."""
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise InputError(f"model: hf:{place} gives several labels at once; it must choose one class for each sample")
    if config.num_labels < 2:
        raise InputError(f"model: hf:{place} has {config.num_labels} output; it must have one for each class")


def _names_in(model: Any, checkpoint: Checkpoint) -> dict[str, str]:
    """The model's name for each tensor of its file: transformers renames some when it loads them.

    Raises:
        InputError: the weights in the file are not those of the model, tensor by tensor.
    """
    state = model.state_dict()
    names = {name: name for name in checkpoint.weights if name in state} | {
        name: own for name, own in _renamed(model, state).items() if name in checkpoint.weights
    }
    held = {state[own].data_ptr() for own in names.values()}
    for own, _ in model.named_parameters():
        if state[own].data_ptr() not in held:
            raise InputError(
                f"model: transformers makes {own!r} from several tensors of {checkpoint.path}, so no patch would fit "
                "them; load it yourself, and give hs.Pretrained(model, processor)"
            )
    for name, own in names.items():
        if not torch.equal(checkpoint.weights[name].to(state[own].dtype), state[own]):
            raise InputError(f"model: its {own!r} is not {name!r} of {checkpoint.path}; save the model again")
    return names


def _renamed(model: Any, state: Mapping[str, Any]) -> dict[str, str]:
    """The model's name by the file's, for each tensor, as `save_pretrained` would write them."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5 nothing was renamed
        return {}
    own = {id(tensor): name for name, tensor in state.items()}
    written = revert_weight_conversion(model, dict(state))
    return {name: own[id(tensor)] for name, tensor in written.items() if id(tensor) in own}
