import torch

from hessian_surgery.data import batches


def test_structure_is_kept():
    tree = {"a": torch.arange(6), "b": (torch.arange(6) * 2, [torch.arange(6) * 3])}
    taken = batches.take(tree, torch.tensor([4, 1]))
    assert taken["a"].tolist() == [4, 1]
    assert taken["b"][0].tolist() == [8, 2]
    assert taken["b"][1][0].tolist() == [12, 3]
    assert [len(t) for t in batches.tensors(tree)] == [6, 6, 6]
    joined = batches.join([taken, taken])
    assert joined["a"].tolist() == [4, 1, 4, 1]
    assert isinstance(joined["b"], tuple)
    assert isinstance(joined["b"][1], list)
    assert batches.move(tree, torch.device("cpu"))["a"].device.type == "cpu"
