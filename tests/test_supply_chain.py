"""What is installed: pinned, hashed, and under known licences."""

import importlib.metadata as installed
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# How licences call themselves where there is no SPDX expression.
NAMES = {
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-based (matplotlib)",
    "ISC License (ISCL)": "ISC",
}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text):
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", text, re.MULTILINE))


def test_every_pinned_package_but_torch_has_hashes():
    pinned = pins((ROOT / "constraints.txt").read_text())
    text = (ROOT / "hashes.txt").read_text()
    assert pins(text) == {name: version for name, version in pinned.items() if name != "torch"}
    parts = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", part) for part in parts)


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {canonical(name) for name in pins((ROOT / "constraints.txt").read_text())}
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["dev"], *extras["docs"]]:
        assert canonical(re.match(r"[A-Za-z0-9._-]+", line).group()) in pinned


def test_the_list_of_licences_is_what_packages_say():
    listed = re.findall(
        r"^\| ([a-z0-9-]+) \| (.+?) \|", (ROOT / "docs/reference/licences.md").read_text(), re.MULTILINE
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonical(re.match(r"[A-Za-z0-9._-]+", line).group()) for line in project["dependencies"]}
    assert needed <= {name for name, _ in listed}
    for name, licence in listed:
        if name == "package":
            continue
        try:
            said = installed.metadata(name)
        except installed.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        classes = [one.split("::")[-1].strip() for one in said.get_all("Classifier") or [] if "License ::" in one]
        own = said.get("License-Expression") or (classes or [said.get("License") or ""])[0]
        assert licence in (own, NAMES.get(own)), (name, own)
