from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hessian_surgery as hs
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint


@pytest.fixture
def weights():
    return nn.Linear(3, 2).state_dict()


def test_safetensors_with_metadata(tmp_path, weights):
    path = tmp_path / "model.safetensors"
    half = {name: tensor.half() for name, tensor in weights.items()}
    save_file(half, path, {"normalize_mean": "0.1,0.2,0.3", "normalize_std": "1,2,3"})
    checkpoint = read_checkpoint(path)
    assert checkpoint.dtypes == {"weight": torch.float16, "bias": torch.float16}
    assert checkpoint.normalization() == ([0.1, 0.2, 0.3], [1, 2, 3])
    assert len(checkpoint.sha256) == 64
    model = nn.Linear(3, 2)
    load_weights(model, checkpoint)
    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, half["weight"].float())


@pytest.mark.parametrize("wrap", [lambda w: w, lambda w: {"state_dict": w, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_torch_files(tmp_path, weights, wrap, prefix):
    path = tmp_path / "model.pt"
    torch.save(wrap({prefix + name: tensor for name, tensor in weights.items()}), path)
    checkpoint = read_checkpoint(path)
    assert torch.equal(checkpoint.weights["weight"], weights["weight"])
    assert checkpoint.normalization() is None


class Evil:
    def __reduce__(self):
        return (open, ("/tmp/hessian-surgery-evil", "w"))


def test_a_file_that_holds_code_is_refused_and_never_run(tmp_path):
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(hs.InputError, match="could run code: refused"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not Path("/tmp/hessian-surgery-evil").exists()


def test_unreadable_files_are_named(tmp_path, weights):
    with pytest.raises(hs.InputError, match="is not a file"):
        read_checkpoint(tmp_path / "absent.pt")
    save_file(weights, tmp_path / "short.safetensors")
    content = (tmp_path / "short.safetensors").read_bytes()
    (tmp_path / "short.safetensors").write_bytes(content[:-5])
    torch.save(weights, tmp_path / "short.pt")
    content = (tmp_path / "short.pt").read_bytes()
    (tmp_path / "short.pt").write_bytes(content[: len(content) // 2])
    for name in ("short.safetensors", "short.pt"):
        with pytest.raises(hs.InputError, match="it may be truncated"):
            read_checkpoint(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(hs.InputError, match="no state_dict"):
        read_checkpoint(tmp_path / "list.pt")


def test_weights_that_do_not_fit_are_named(tmp_path, weights):
    path = tmp_path / "model.safetensors"
    for change, message in [
        ({"extra": torch.zeros(1)}, "has 'extra', which the model lacks"),
        ({"bias": torch.zeros(5)}, r"'bias' has shape \(5,\), the model's has \(2,\)"),
        ({"bias": torch.tensor([float("nan"), 0.0])}, "'bias' holds NaN"),
    ]:
        save_file(weights | change, path)
        with pytest.raises(hs.InputError, match=message):
            load_weights(nn.Linear(3, 2), read_checkpoint(path))
    save_file({"bias": weights["bias"]}, path)
    with pytest.raises(hs.InputError, match="lacks 'weight'"):
        load_weights(nn.Linear(3, 2), read_checkpoint(path))


class Wrapped(nn.Module):
    """A net with a part that is called `module`, as DataParallel calls all of it."""

    def __init__(self):
        super().__init__()
        self.module = nn.BatchNorm1d(3)
        self.fc = nn.Linear(3, 2)


@pytest.mark.parametrize("counted", [True, False])
def test_what_load_state_dict_takes_is_taken(tmp_path, counted):
    stored = {n: t + 1 for n, t in Wrapped().state_dict().items() if counted or not n.endswith("num_batches_tracked")}
    torch.save(stored, tmp_path / "model.th")
    model = Wrapped()
    model.load_state_dict(stored)
    load_weights(found := Wrapped(), read_checkpoint(tmp_path / "model.th"))
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    del stored["module.running_mean"]
    torch.save(stored, tmp_path / "model.th")
    with pytest.raises(hs.InputError, match=r"lacks 'module\.running_mean'; give the model"):
        load_weights(Wrapped(), read_checkpoint(tmp_path / "model.th"))


def test_a_net_that_is_one_batchnorm(tmp_path):
    torch.save({n: t for n, t in nn.BatchNorm1d(3).state_dict().items() if t.ndim}, tmp_path / "model.th")
    load_weights(nn.BatchNorm1d(3), read_checkpoint(tmp_path / "model.th"))


def nested():
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


KINDS = [
    (lambda: torch.zeros(2, 3).to(torch.float8_e4m3fn), "'weight' is torch.float8_e4m3fn; give plain tensors"),
    (lambda: torch.eye(3).to_sparse(), "'weight' is torch.sparse_coo; give plain tensors"),
    (lambda: torch.eye(3).to_sparse_csr(), "'weight' is torch.sparse_csr; give plain tensors"),
    (lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), "'weight' is torch.qint8; give plain"),
    (nested, "'weight' is nested; give plain tensors|cannot be read|holds more than weights"),
    (lambda: torch.zeros(2, device="meta"), "meta device|cannot be read|holds more than weights"),
    (lambda: torch.zeros(2, dtype=torch.complex128), "'weight' is torch.complex128; give plain tensors"),
    (lambda: torch.zeros(2, dtype=torch.uint16), "'weight' is torch.uint16; give plain tensors"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "words"), KINDS)
def test_tensors_that_no_model_is_loaded_from_are_refused(tmp_path, make, words):
    torch.save({"weight": make()}, tmp_path / "odd.pt")
    with pytest.raises(hs.InputError, match=words):
        read_checkpoint(tmp_path / "odd.pt")


def test_names_that_are_no_text_are_refused(tmp_path):
    torch.save({1: torch.zeros(2)}, tmp_path / "odd.pt")
    with pytest.raises(hs.InputError, match="holds tensors without names"):
        read_checkpoint(tmp_path / "odd.pt")


def test_a_tensor_without_dimensions_is_only_a_shape_that_does_not_fit(tmp_path):
    torch.save({"weight": torch.zeros(3, 2), "bias": torch.tensor(1.0)}, tmp_path / "odd.pt")
    with pytest.raises(hs.InputError, match=r"'bias' has shape \(\), the model's has \(3,\)"):
        load_weights(nn.Linear(2, 3), read_checkpoint(tmp_path / "odd.pt"))
