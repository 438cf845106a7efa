"""The section about how to get the same results: command, seed, hashes and versions."""

import shlex
from collections.abc import Mapping
from typing import Any

from hessian_surgery.markup import copyable, table, text
from hessian_surgery.report.page import Section


def command_line(command: str, options: Mapping[str, Any]) -> str:
    """Write a command for a shell, from options as `config.json` keeps them."""
    words = ["hessian-surgery", command]
    for key, value in options.items():
        # An option without a value has an empty one.
        words += [f"--{key.replace('_', '-')}", *([str(value)] if value != "" else [])]
    return shlex.join(words)


def ran_as_command(options: Mapping[str, Any]) -> bool:
    """Tell a run of the command line from a call in Python, which records no source of data."""
    return not {"data", "calibration_data", "logits"}.isdisjoint(options)


def reproduction(
    command: str, options: Mapping[str, Any], facts: Mapping[str, Any], hashes: Mapping[str, str]
) -> Section:
    """Say how to get the same results.

    Args:
        command: its name.
        options: those that it was given; empty if it was called from Python.
        facts: seed, versions, device and time, by name.
        hashes: SHA-256, by the name of what was hashed.
    """
    if ran_as_command(options):
        how = "<p>Run this where you ran it the first time; <code>--out</code> must name a new folder.</p>"
        renamed = {"out": f"{options['out']}-again"} if "out" in options else {}
        how += copyable(command_line(command, {**options, **renamed}), "again")
    else:
        how = "<p>This was called from Python; the JSON files of this folder hold all settings.</p>"
    rows = [(text(key), text(value)) for key, value in facts.items()]
    rows += [(f"SHA-256, {text(key)}", f'<code class="hash">{text(value)}</code>') for key, value in hashes.items()]
    facts_table = table(("what", "value"), rows, "Seed, versions and hashes", "facts")
    return Section("reproduce", "How to reproduce this", how + facts_table)


def subject(content: Mapping[str, Any]) -> str:
    """Name model, data and date in a line; empty in files of earlier versions, which lack them."""
    if not content.get("model"):
        return ""
    source = content["inputs"].get("checkpoint") or content["inputs"].get("model")
    model = content["model"] + (f" ({source})" if source else "")
    noun = content.get("noun", "images")
    sizes = []
    for part in content["data"].values():
        sizes += [f"{part['images']:,} {noun}", *([f"SHA-256 {part['sha256'][:12]}…"] if part["sha256"] else [])]
    sources = ("data", "calibration_data", "heldout_data", "logits")
    given = [content["inputs"][key] for key in sources if key in content["inputs"]]
    day = content["date"][:16].replace("T", " ")
    return f'<p class="note">Model {text(model)}; data {text(", ".join([*given, *sizes]))}; {text(day)} UTC.</p>'


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Collect date, model, seed, time and environment from the contents of a JSON file."""
    seconds = {"seconds": f"{content['seconds']:.1f}"} if "seconds" in content else {}
    known = {key: content[key] for key in ("date", "model") if content.get(key)}
    return {**known, "seed": content["seed"], **seconds, **content["environment"]}
