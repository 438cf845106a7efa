"""Tests that need optional packages: `pytestmark = extra("peft")` marks and skips them."""

from importlib.util import find_spec

import pytest


def extra(*packages: str) -> list[pytest.MarkDecorator]:
    """Marks for tests that need packages: skipped where one is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    reason = f"needs {', '.join(missing)}, which `make test-extras` installs"
    return [pytest.mark.extras, pytest.mark.skipif(bool(missing), reason=reason)]
