"""Why an optional package cannot be loaded."""

import sys

import pytest

import hessian_surgery as hs
from hessian_surgery.import_by_name import import_extra, why_not_loaded

MISFIT = "torchvision does not fit this torch; reinstall it"


def wrapped(cause):
    """As transformers raises it: the cause is one or two errors below."""
    try:
        try:
            raise cause
        except type(cause) as error:
            raise ModuleNotFoundError("Could not import module 'BertModel'. Are its requirements defined?") from error
    except ModuleNotFoundError as error:
        return error


@pytest.mark.parametrize(
    "cause",
    [
        RuntimeError("operator torchvision::nms does not exist"),
        ImportError("/lib/torchvision/_C.so: undefined symbol: _ZN3c10"),
        ImportError("cannot import name 'InterpolationMode' from 'torchvision.transforms'", name="torchvision"),
        AttributeError("partially initialized module 'torchvision' has no attribute 'extension'"),
    ],
)
def test_torchvision_for_another_torch_is_blamed_and_not_the_model(cause):
    assert why_not_loaded(cause).startswith(MISFIT)
    assert why_not_loaded(wrapped(cause)).startswith(MISFIT)


@pytest.mark.parametrize(
    "cause",
    [
        ModuleNotFoundError("No module named 'torchvision'", name="torchvision"),
        OSError("my-torchvision-model/config.json is damaged"),
        RuntimeError("size mismatch for classifier.weight"),
    ],
)
def test_other_reasons_are_given_as_they_are(cause):
    assert why_not_loaded(cause) == str(cause)
    assert why_not_loaded(wrapped(cause)).startswith("Could not import module 'BertModel'")


def test_a_package_that_fails_over_torchvision_says_so(tmp_path, monkeypatch):
    (tmp_path / "needs_vision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(hs.InputError, match=f"^model: needs_vision is installed but cannot be imported: {MISFIT}"):
        import_extra("needs_vision", "model", "hf")
    assert "needs_vision" not in sys.modules
