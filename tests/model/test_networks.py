import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import real
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.build import BUILT_IN, build_model
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.resnet import resnet18, resnet34, resnet50


@pytest.mark.parametrize(("factory", "count"), [(resnet18, 11_181_642), (resnet34, 21_289_802), (resnet50, 23_528_522)])
def test_resnets_have_torchvisions_sizes_and_names(factory, count):
    model = factory(10)
    assert sum(p.numel() for p in model.parameters()) == count
    names = set(model.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv2.weight", "fc.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var"} <= names
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_built_in_names_and_import_paths():
    for name in BUILT_IN:
        assert isinstance(build_model(name, 4), nn.Module)
    assert isinstance(build_model("torch.nn:Identity", 4), nn.Identity)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet51", "give one of resnet18"),
        ("os:getcwd", "must return a torch.nn.Module"),
        ("a.b:c", "cannot be imported"),
    ],
)
def test_bad_models_are_named(spec, message):
    with pytest.raises(hs.InputError, match=message):
        build_model(spec, 4)


def test_a_folder_of_hugging_face_without_its_kind_is_asked_about(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(hs.InputError, match=r"for your own$"):
        build_model("mine", 4)
    (tmp_path / "mine/config.json").write_text("{}")
    with pytest.raises(hs.InputError, match=r"^model: got 'mine'; .*; did you mean hf:mine\?$"):
        build_model("mine", 4)


@pytest.mark.full
def test_the_real_checkpoint_reaches_its_accuracy(shared):
    model, parts = real(shared, "ham10000")
    heldout = parts.heldout
    metrics = compute_metrics(predict(hs.Classifier(model), heldout), heldout.labels, 7)
    assert metrics.accuracy == pytest.approx(0.7265, abs=0.03)
    assert metrics.sigma == pytest.approx(0.2026, abs=0.05)
