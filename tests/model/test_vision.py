"""timm and torchvision by name: their networks, preprocessing, weights and class names."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import hessian_surgery as hs
from extras import extra
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.vision import build_vision, find_vision

timm_only = extra("timm", "torchvision")
torchvision_only = extra("torchvision")
NETWORKS = [
    pytest.param("timm:test_resnet", marks=timm_only),
    pytest.param("timm:test_vit", marks=timm_only),
    pytest.param("torchvision:shufflenet_v2_x0_5", marks=torchvision_only),
]
COLOURS = {"blue": (90, 90, 140), "green": (90, 130, 90), "red": (140, 90, 90)}


def picture(colour, draw, size=20):
    """A noisy square of a colour."""
    pixels = np.clip(draw.normal(colour, 60, (size, size, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def photos(tmp_path):
    """A folder of images of three colours, in a train and a test part."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 40)):
        for name, colour in COLOURS.items():
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(colour, draw).save(folder / f"{i}.png")
    return f"imagefolder:{tmp_path / 'photos'}"


@pytest.mark.parametrize("spec", NETWORKS)
def test_a_network_by_name_goes_through_the_command_line(spec, photos, run, tmp_path, capsys):
    torch.manual_seed(0)
    module = find_vision(spec).build(3)
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    given = ("--model", spec, "--checkpoint", str(tmp_path / "weights.safetensors"), "--data", photos)
    # A transformer takes images of one size only.
    size = ("--image-size", "160") if "vit" in spec else ("--image-size", "32")
    assert run("operate", *given, *size, "--quick", "--out", str(tmp_path / "run"), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["classes"] == list(COLOURS)
    assert result["model"] == type(module).__name__


@pytest.mark.parametrize("spec", NETWORKS)
def test_images_are_prepared_as_the_library_does(spec):
    encoded = io.BytesIO()
    image = picture((100, 120, 140), np.random.default_rng(1), 300)
    image.save(encoded, "PNG")
    found = find_vision(spec).preprocessing.batch([encoded.getvalue()], ["it"])
    kind, _, name = spec.partition(":")
    if kind == "timm":
        import timm

        config = timm.data.resolve_model_data_config(timm.create_model(name))
        wanted = timm.data.create_transform(**config, is_training=False)(image)
    else:
        import torchvision

        wanted = torchvision.models.get_model_weights(name).DEFAULT.transforms()(image)
    assert torch.equal(found[0], wanted)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    assert torch.equal(find_vision(spec).preprocessing.normalize(pixels)[0], wanted)


@pytest.mark.parametrize("spec", NETWORKS)
def test_a_checkpoint_says_how_many_outputs_there_are(spec):
    found = find_vision(spec)
    stored = found.build(5).state_dict()
    build_vision(found, 3, stored).load_state_dict(stored)


@pytest.mark.extras
@pytest.mark.skipif(torchvision_only[1].args[0], reason="needs torchvision")
def test_the_librarys_own_weights_and_class_names_are_used(photos, run, tmp_path, monkeypatch, capsys):
    import torchvision

    weights = torchvision.models.ShuffleNet_V2_X0_5_Weights.DEFAULT
    cache = tmp_path / "torch/hub/checkpoints"
    cache.mkdir(parents=True)
    torch.save(torchvision.models.shufflenet_v2_x0_5().state_dict(), cache / weights.url.rpartition("/")[2])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    module = find_vision("torchvision:shufflenet_v2_x0_5").trained().eval()
    assert module.class_names[:2] == ("tench", "goldfish")
    images = torch.rand(6, 3, 32, 32)
    right = hs.as_labelled((images, torch.arange(6) % 2), classes=["tench", "goldfish"])
    assert "1000 outputs" in check_classifier(hs.Classifier(module), right)
    wrong = hs.as_labelled((images, torch.arange(6) % 2), classes=["goldfish", "tench"])
    with pytest.raises(hs.InputError, match="its class 0 is 'tench' \\(class_names\\), but the data's is 'goldfish'"):
        check_classifier(hs.Classifier(module), wrong)
    given = ("--model", "torchvision:shufflenet_v2_x0_5", "--data", photos, "--dry-run")
    assert run("operate", *given, "--out", str(tmp_path / "run")) == 0
    said = capsys.readouterr().err
    assert "the weights that torchvision:shufflenet_v2_x0_5 comes with are used" in said
    assert "images are prepared as torchvision:shufflenet_v2_x0_5 does by default" in said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param("timm:resnt", "model: timm has no 'resnt'; give a name such as", marks=timm_only),
        pytest.param("torchvision:maskrcnn_resnet50_fpn", "model: torchvision has no", marks=torchvision_only),
    ],
)
def test_an_unknown_name_is_refused(spec, said):
    with pytest.raises(hs.InputError, match=said):
        find_vision(spec)


def test_other_names_are_not_theirs():
    assert find_vision("resnet50") is None
    assert find_vision("package.module:factory") is None


@pytest.mark.skipif(not timm_only[1].args[0], reason="timm is installed")
def test_without_the_library_one_line_says_what_to_install():
    with pytest.raises(hs.InputError, match=r"model: it needs timm, .* pip install 'hessian-surgery\[vision\]'"):
        find_vision("timm:resnet50")


def test_a_model_may_carry_its_class_names():
    net = nn.Linear(2, 2)
    net.class_names = ["cat", "dog"]
    data = hs.as_labelled((torch.randn(4, 2), torch.arange(4) % 2), classes=["dog", "cat"])
    with pytest.raises(hs.InputError, match="class 0 is 'cat'"):
        check_classifier(hs.Classifier(net), data)
