"""Make configurations from options."""

from dataclasses import fields, replace
from typing import Any

from hessian_surgery.cli.options import ConfigOptions
from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.errors import InputError
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.parse_numbers import parse_accuracy, parse_amount, parse_number


def given_options(options: object) -> dict[str, Any]:
    """Return the options that are not None, by name: they were given or have a default."""
    return {name: value for name, value in vars(options).items() if value is not None}


def choose_config(options: ConfigOptions, default: OperationConfig | None = None) -> OperationConfig:
    """Return the configuration of the preset, changed by the options that were given.

    Args:
        options: of a command.
        default: what `--preset default` means; by default the default operation.
    """
    given = given_options(options)
    config = _preset(options.preset, given.get("control"), default or SurgeryConfig())
    own = _names(config)
    if "=" in given.get("target", ""):
        if "targets" not in own:
            raise InputError(f"target: got {given['target']!r}, but the loop takes sigma or worst; leave out --preset")
        given["targets"] = parse_targets(given.pop("target"))
    for option in ("budget", "max_drop"):
        if option in given:
            given[option] = parse_amount(option, given[option])
    for option in ("protect", "classes_of_interest"):
        if option in given:
            given[option] = tuple(name.strip() for name in given[option].split(","))
    if given.get("exponent", "auto") != "auto":
        given["exponent"] = parse_number("exponent", given["exponent"])
    chosen = {name: value for name, value in given.items() if name in own}
    return replace(config, search=choose_search(options, config.search), **chosen)


def choose_search(options: object, default: SpikeSearch) -> SpikeSearch:
    """Return how spikes are sought: the default, changed by the options that were given."""
    own = _names(default)
    return replace(default, **{name: value for name, value in given_options(options).items() if name in own})


def refuse_unused(options: ConfigOptions, config: OperationConfig) -> None:
    """Raise an InputError if an option was given that the chosen algorithm cannot use."""
    own = _names(config)
    search = _names(config.search)
    for name, value in given_options(options).items():
        hint = None
        if name in search and not config.uses_spikes:
            hint = "it is about spikes; give --directions spikes, or --preset loop"
        elif name in _names(LoopConfig()) - own:
            hint = "it belongs to the loop; give --preset loop"
        elif name in _names(SurgeryConfig()) - own:
            hint = "the loop has no use for it; leave out --preset"
        if hint:
            raise InputError(f"{name}: got {value!r}, but {hint}")


def parse_targets(text: str) -> dict[str, float]:
    """Read accuracies by class name from `cat=0.8,dog=75%`; names may hold equals signs."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    if not all(names) or not all(value.strip() for _, _, value in pairs) or len(set(names)) < len(names):
        raise InputError(f"target: got {text!r}; give sigma, worst, or accuracies such as cat=0.8,dog=75%, each once")
    return {name: parse_accuracy("target", value) for name, (_, _, value) in zip(names, pairs, strict=True)}


def _preset(text: str, control: str | None, default: OperationConfig) -> OperationConfig:
    if text == "default":
        return default
    if text == "loop":
        return LoopConfig()
    name, _, variant = text.partition(":")
    if name != "paper":
        raise InputError(f"preset: got {text!r}; give default, loop, paper, paper:cifar100, paper:isic/focal, …")
    dataset, _, start = variant.partition("/")
    return paper_config(dataset or "cifar10", start or "ce", control or "adam")  # type: ignore[arg-type]


def _names(config: OperationConfig | SpikeSearch) -> set[str]:
    return {own.name for own in fields(config)}
