import json

import pytest

import hessian_surgery as hs
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.operation.observer import Observer

pytestmark = pytest.mark.usefixtures("own_folder")


class Told(Observer):
    """Keeps what is expected, and each stage when it begins."""

    def __init__(self):
        self.expected = []
        self.begun = []
        self.share = 0.0

    def expect(self, stages, in_seconds=True):
        assert not self.begun
        self.expected = stages()

    def stage(self, name, done, total):
        if not self.begun or name != self.begun[-1] or done / total < self.share:
            assert done == 0, name
            self.begun.append(name)
        self.share = done / total


METHODS = ("temperature", "class-gradients", "spikes:3", "one-step", "operate", "loop", "focal+class-bias", "loop+bulk")


@pytest.mark.full
def test_the_announced_stages_are_those_of_the_progress(trained, digits_parts, digits_images, quick):
    told = Told()
    protocol = hs.Protocol(methods=METHODS, splits=2, budgets=(0.0, 0.01), epochs=1)
    hs.compare(
        trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, config=quick, observer=told
    )
    assert told.begun == [stage.name for stage in told.expected]
    assert all(stage.seconds > 0 for stage in told.expected if stage.name not in ("nothing", "focal"))


def test_stored_logits_have_stages_too(examined):
    told = Told()
    outputs: ModelOutputs = examined[1]
    hs.compare_logits(outputs, hs.Protocol(methods=("temperature",), splits=2), told)
    assert told.begun == [stage.name for stage in told.expected] == ["nothing", "class-bias", "temperature", "evidence"]


def test_progress_in_python_goes_to_stderr(capsys, trained, digits_parts, digits_images):
    protocol = hs.Protocol(methods=("temperature",), splits=1)
    hs.compare(trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(f"{name} " in captured.err for name in ("outputs", "class-bias", "evidence"))


def test_a_dry_run_gives_seconds_by_stage(run, capsys, tmp_path):
    arguments = ["compare", "--data", "digits", "--methods", "class-bias,operate", "--splits", "2", "--dry-run"]
    assert run(*arguments, "--json", "--out", "folder") == 0
    cost = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in cost["stages"]] == ["outputs", "nothing", "class-bias", "operate", "evidence"]
    assert cost["seconds"] == pytest.approx(sum(stage["seconds"] for stage in cost["stages"]))
    assert not (tmp_path / "folder").exists()
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    assert "s in all" in captured.out
    assert "trial 0/4" in captured.err
    assert run(*arguments, "--preset", "loop", "--protect", "3") == 2
    assert "protect: got '3', but the loop has no use" in capsys.readouterr().err
    assert run("compare", "--logits", "logits.safetensors", "--dry-run") == 2
    assert "leave out --dry-run" in capsys.readouterr().err
