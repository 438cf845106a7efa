"""Write `hashes.txt`: the versions of `constraints.txt` with the SHA-256 of their files on PyPI."""

import re
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# The versions of constraints.txt with the SHA-256 of their wheels on PyPI, made by
# `python docs/make_hashes.py`. SECURITY.md says how to install with them, and why torch is left out.
"""
# Wheels for the versions of Python that are supported; a source archive only if there is no wheel.
WHEEL = re.compile(r"-(py3|py2\.py3|cp3|cp31[1-4])[^-]*-(none|abi3|abi3t|cp31[1-4]t?)-[^-]+\.whl$")
LINK = re.compile(r'/([^/"#]+)#sha256=([0-9a-f]{64})')


def canonical(name: str) -> str:
    """A package's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes(name: str, version: str) -> list[str]:
    """The hashes of a version's files."""
    with urllib.request.urlopen(f"https://pypi.org/simple/{canonical(name)}/", timeout=60) as answer:
        links = LINK.findall(answer.read().decode())
    wheels, archives = [], []
    for file, found in links:
        stem = file.removesuffix(".tar.gz").removesuffix(".zip")
        if WHEEL.search(file) and file.split("-")[1] == version:
            wheels.append(found)
        elif stem != file and canonical(stem) == canonical(f"{name}-{version}"):
            archives.append(found)
    return sorted(set(wheels or archives))


def main() -> None:
    """Ask the index for every pinned version but torch's."""
    pins = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    parts = []
    for pin in pins:
        name, _, version = pin.partition("==")
        if name != "torch":
            listed = "".join(f" \\\n    --hash=sha256:{one}" for one in hashes(name, version))
            parts.append(pin + listed)
    (ROOT / "hashes.txt").write_text(HEAD + "\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
