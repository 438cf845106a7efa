"""How to do it again: the command, the seed, hashes and versions."""

import shlex
from collections.abc import Mapping
from typing import Any

from hessian_surgery.report.markup import copyable, table, text
from hessian_surgery.report.page import Section


def command_line(command: str, options: Mapping[str, Any]) -> str:
    """A command for a shell, from options as `config.json` keeps them."""
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return shlex.join(["hessian-surgery", command, *words])


def reproduction(
    command: str, options: Mapping[str, Any], facts: Mapping[str, Any], hashes: Mapping[str, str]
) -> Section:
    """The section that says how to get the same figures again.

    Args:
        command: the command's name.
        options: those it was given; empty where it was called from Python.
        facts: seed, versions, device, time, by name.
        hashes: SHA-256 by what it is of.
    """
    if {"data", "calibration_data", "logits"} & options.keys():
        how = "<p>From the folder that it was first run in; <code>--out</code> must be a new folder.</p>"
        elsewhere = {"out": f"{options['out']}-again"} if "out" in options else {}
        how += copyable(command_line(command, {**options, **elsewhere}), "again")
    else:
        how = "<p>It was called from Python: <code>config.json</code> holds every choice that was made.</p>"
    rows = [(text(key), text(value)) for key, value in facts.items()]
    rows += [(f"SHA-256, {text(key)}", f'<code class="hash">{text(value)}</code>') for key, value in hashes.items()]
    return Section(
        "reproduce", "How to reproduce it", how + table(("what", "value"), rows, "Seed, versions and hashes", "facts")
    )


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Seed, time and environment of what a command wrote."""
    seconds = {"seconds": f"{content['seconds']:.1f}"} if "seconds" in content else {}
    return {"seed": content["seed"], **seconds, **content["environment"]}
