"""A run killed at any moment goes on where it was, and ends bit for bit the same."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.iteration import DEFAULT, DefaultState
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.state_file import fingerprint, forget_state, load_state, save_state, state_folder
from hessian_surgery.ranks import Ranks, acting

ITERATIONS = 6
LOOP = ("--preset", "loop", "--hessian-samples", "64")
# A first step that gains much, so that there is a second iteration.
DEFAULT_OPTIONS = ("--budget", "0.01")


def command(checkpoint, out, *more):
    arguments = ["operate", "--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--out", out]
    return [sys.executable, "-m", "hessian_surgery", *arguments, "--iterations", str(ITERATIONS), *more]


def without_times(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def wait_for_lines(process, folder, lines):
    """Until so many iterations are finished, or the process is."""
    while process.poll() is None:
        history = folder / "history.jsonl"
        if lines == 0 or (history.exists() and len(history.read_text().splitlines()) >= lines):
            return
        time.sleep(0.005)


def heed_interrupts():
    """In the new process: a shell's background jobs, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def check_kills(tmp_path, checkpoint, kills, how, options=LOOP):
    subprocess.run(command(checkpoint, "whole", *options), cwd=tmp_path, check=True, capture_output=True)
    rounds = len(without_times(tmp_path / "whole"))
    assert rounds > 1
    whole = load_file(tmp_path / "whole/model.safetensors")
    chance, interrupted = random.Random(0), 0
    for i in range(kills):
        folder = tmp_path / f"run{i}"
        start = command(checkpoint, f"run{i}", *options)
        process = subprocess.Popen(start, cwd=tmp_path, stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts)
        wait_for_lines(process, folder, chance.randrange(rounds))
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(how)
        interrupted += process.wait() != 0
        if not (folder / "result.json").exists():
            subprocess.run([*start, "--resume"], cwd=tmp_path, check=True, capture_output=True)
        found = load_file(folder / "model.safetensors")
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
        assert without_times(folder) == without_times(tmp_path / "whole")
    assert interrupted >= kills / 2


@pytest.mark.full
def test_killed_and_resumed(tmp_path, checkpoint):
    check_kills(tmp_path, checkpoint, 1, signal.SIGKILL)


@pytest.mark.full
def test_a_default_operation_killed_and_resumed(tmp_path, checkpoint):
    check_kills(tmp_path, checkpoint, 1, signal.SIGKILL, DEFAULT_OPTIONS)


@pytest.mark.full
@pytest.mark.parametrize("options", [LOOP, DEFAULT_OPTIONS], ids=["loop", "default"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ten_random_moments(tmp_path, checkpoint, how, options):
    check_kills(tmp_path, checkpoint, 10 if how == signal.SIGKILL else 4, how, options)


class Stop(Observer):
    """Stops after an iteration, before or after its state is kept."""

    def __init__(self, iteration):
        self.at = iteration

    def iteration(self, record):
        if record.iteration == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("control", ["adam", "gamma"])
@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(4, marks=pytest.mark.full)])
def test_stopped_between_history_and_state(_trained, digits_parts, quick, tmp_path, control, stop):
    config = replace(quick, iterations=4, control=control)

    def afresh(folder, **options):
        model = SmallNet(10)
        model.load_state_dict(_trained)
        return operate(model, digits_parts, config, folder=folder, **options)

    whole = afresh(None)
    with pytest.raises(KeyboardInterrupt):
        afresh(tmp_path, observer=Stop(stop))
    resumed = afresh(tmp_path, resume=True)
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())
    assert len(resumed.iterations) == 4
    assert without_times(tmp_path) == [
        {key: value for key, value in record.as_dict().items() if key != "seconds"} for record in whole.iterations
    ]


@pytest.mark.parametrize("stop", [1])
def test_a_default_operation_stopped_between_history_and_state(_trained, digits_parts, tmp_path, stop):
    config = hs.SurgeryConfig(budget=0.01)

    def afresh(folder, **options):
        model = SmallNet(10)
        model.load_state_dict(_trained)
        return operate(model, digits_parts, config, folder=folder, **options)

    whole = afresh(None)
    assert whole.iterations[0].accepted
    with pytest.raises(KeyboardInterrupt):
        afresh(tmp_path, observer=Stop(stop))
    resumed = afresh(tmp_path, resume=True)
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())
    assert without_times(tmp_path) == [
        {key: value for key, value in record.as_dict().items() if key != "seconds"} for record in whole.iterations
    ]


def test_optimism_and_front_come_back(trained, digits_parts, tmp_path):
    config = hs.SurgeryConfig()
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    state = DefaultState(1, problem.base, optimism=0.0125, front={"points": [0.25]}, overconfidence=1.25)
    save_state(tmp_path, problem, DEFAULT.pack(tmp_path, problem, state, "identity"), "identity")
    _, found = load_state(tmp_path, problem, "identity", DEFAULT.unpack)
    assert (found.iteration, found.finished, found.optimism, found.front) == (1, False, 0.0125, {"points": [0.25]})
    assert found.overconfidence == 1.25
    assert found.accuracy.tolist() == problem.base.tolist()


def test_targets_and_protected_classes_are_part_of_what_a_run_is(trained, digits_parts, tmp_path):
    def identity(**choices):
        config = hs.SurgeryConfig(**choices)
        return fingerprint(prepare(trained, digits_parts.training, digits_parts.calibration, config)[0])

    several = [{}, {"targets": {"2": 0.5}}, {"targets": {"2": 0.6}}, {"protect": ("2",)}, {"budget": 0.01}]
    assert len({identity(**choices) for choices in several}) == 5


def test_another_run_is_not_resumed(trained, digits_parts, quick, tmp_path):
    def kept(config, **options):
        return operate(trained, digits_parts, config, folder=tmp_path, **options)

    with pytest.raises(KeyboardInterrupt):
        kept(quick, observer=Stop(2))
    with pytest.raises(hs.InputError, match="holds another run"):
        kept(quick)
    with pytest.raises(hs.InputError, match="belongs to a run with other options"):
        kept(replace(quick, seed=1), resume=True)
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(hs.InputError, match="has 0 lines, where 1 are needed"):
        kept(quick, resume=True)
    (tmp_path / "checkpoint/state.safetensors").write_text("broken")
    with pytest.raises(hs.InputError, match=r"state\.safetensors cannot be read"):
        kept(quick, resume=True)


def test_the_fingerprint_knows_images_buffers_and_frozen_weights(trained, digits_parts, quick):
    def identity(model, calibration=digits_parts.calibration):
        config = replace(quick, parameters="fc.*")
        return fingerprint(prepare(model, digits_parts.training, calibration, config)[0])

    first = identity(trained)
    assert identity(trained) == first
    brighter = replace(digits_parts.calibration, fetch=lambda p: digits_parts.calibration.fetch(p) + 0.1)
    assert identity(trained, brighter) != first
    trained.features[1].running_mean += 0.01
    assert identity(trained) != first
    trained.features[1].running_mean -= 0.01
    with torch.no_grad():
        trained.features[0].weight[0, 0, 0, 0] += 0.1
    assert identity(trained) != first


def test_two_runs_on_one_folder(tmp_path, checkpoint):
    """The second is refused while the first one runs, and the first one does not notice."""
    first = subprocess.Popen(command(checkpoint, "run", *LOOP), cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run/.hessian-surgery.lock").exists():
        time.sleep(0.02)
        assert first.poll() is None
    from hessian_surgery.files import claimed

    with pytest.raises(hs.InputError, match="another process is writing"), claimed(tmp_path / "run"):
        pass
    assert first.wait() == 0
    assert (tmp_path / "run/result.json").exists()
    assert not (tmp_path / "run/.hessian-surgery.lock").exists()


@pytest.mark.full
def test_a_resumed_run_makes_its_passes_as_before(_trained, digits_parts, tmp_path):
    def afresh(channels_last, folder, **options):
        model = SmallNet(10)
        model.load_state_dict(_trained)
        classifier = hs.Classifier(model, channels_last=channels_last)
        return operate(classifier, digits_parts, hs.SurgeryConfig(budget=0.01, iterations=2), folder=folder, **options)

    whole = afresh(True, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        afresh(True, tmp_path, observer=Stop(2))
    # The second run would choose otherwise.
    resumed = afresh(None, tmp_path, resume=True)
    assert (resumed.choices["batch_size"], resumed.choices["channels_last"]) == (512, True)
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())
    for part in ("calibration", "heldout"):
        found, expected = (getattr(outcome.findings, part).tensors() for outcome in (resumed, whole))
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_flipped_bit_of_the_state_ends_the_resumed_run(_trained, digits_parts, tmp_path):
    def afresh(**options):
        model = SmallNet(10)
        model.load_state_dict(_trained)
        return operate(model, digits_parts, hs.SurgeryConfig(budget=0.01, iterations=2), folder=tmp_path, **options)

    with pytest.raises(KeyboardInterrupt):
        afresh(observer=Stop(2))
    (state,) = tmp_path.rglob("state.safetensors")
    content = bytearray(state.read_bytes())
    content[-20] ^= 1
    state.write_bytes(content)
    with pytest.raises(hs.InputError, match="its checksum does not fit, so it is damaged; begin again in another"):
        afresh(resume=True)


def test_only_the_rank_that_writes_forgets_a_state(tmp_path):
    """Both at once would each find files gone that it has just seen."""
    kept = state_folder(tmp_path) / "state.safetensors"
    kept.parent.mkdir()
    kept.touch()
    with acting(Ranks(1, 2, writes=False)):
        forget_state(tmp_path)
    assert kept.exists()
    forget_state(tmp_path)
    assert not kept.parent.exists()
