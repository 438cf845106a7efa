"""Arguments as options: what rooms below call `max_drop=0.03` is `--max-drop 0.03` here."""

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import get_type_hints

from typer.models import OptionInfo

from hessian_surgery.cli.compare_options import CompareOptions
from hessian_surgery.cli.diagnose_options import DiagnoseOptions
from hessian_surgery.cli.operate_options import OperateOptions
from hessian_surgery.cli.run_options import ReportOptions
from hessian_surgery.cli.study_options import BulkWalkOptions, SpectrumOptions, StabilityOptions
from hessian_surgery.cli.train_options import TrainOptions

KINDS = (
    OperateOptions,
    CompareOptions,
    DiagnoseOptions,
    ReportOptions,
    SpectrumOptions,
    StabilityOptions,
    BulkWalkOptions,
    TrainOptions,
)
QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# A setting as Python writes it: max_drop=0.03, protect=('cat', 'dog'), targets={'cat': 0.8}.
NAMES = rf"\((?:[^()'\"]|{QUOTED})*\)"
TABLE = rf"\{{(?:[^{{}}'\"]|{QUOTED})*\}}"
SETTING = re.compile(rf"(?<![\w/\\-])(\w+)=({QUOTED}|{NAMES}|{TABLE}|[\w+-]+(?:\.\w+)*)(, (?=\w+=))?")


def as_options(text: str, kind: type | None = None) -> str:
    """Write settings and arguments in a text as options.

    Args:
        text: for a person. An error begins with its argument.
        kind: the options of the command; arguments that it lacks stay as they are at the beginning.
    """
    every = _every()
    own = every if kind is None else _options(kind)

    def setting(found: re.Match[str]) -> str:
        name, value, more = found.groups()
        return f"{every[name]}{_written(value)}{' ' if more else ''}" if name in every else found.group()

    text = SETTING.sub(setting, text)
    text = re.sub(r"^\w+(?=:)", lambda found: own.get(found.group(), found.group()), text)
    # Elsewhere a word could be just a word, unless it has an underscore.
    return re.sub(
        r"(?<![\w'./\\-])[a-z]+_[a-z_]+(?![\w'./\\])", lambda found: every.get(found.group(), found.group()), text
    )


def _written(value: str) -> str:
    """A value of Python's as the command line takes it, after a space; nothing for True."""
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a stand-in, such as N
        return f" {value}"
    if read is True:
        return ""
    if isinstance(read, Mapping):
        read = ",".join(f"{name}={amount:g}" for name, amount in read.items())
    elif isinstance(read, tuple):
        read = ",".join(read)
    return f" {shlex.quote(str(read))}"


@cache
def _every() -> dict[str, str]:
    """The option of each argument, such as --max-drop of max_drop."""
    return {name: option for kind in KINDS for name, option in _options(kind).items()}


def _options(kind: type) -> dict[str, str]:
    """The option of each field; a field that is given without a name has none."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for own in fields(kind):
        given = hints[own.name].__metadata__[0]
        if isinstance(given, OptionInfo):
            # Typer takes the first name for a default.
            declared = (given.default, *(given.param_decls or ()))
            named = [text for text in declared if isinstance(text, str) and text.startswith("--")]
            found[own.name] = named[0] if named else f"--{own.name.replace('_', '-')}"
    return found | ({"targets": found["target"]} if "target" in found else {})
