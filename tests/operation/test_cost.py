from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import hessian_surgery as hs
from conftest import points
from hessian_surgery.curvature.memory import Room, saved_bytes, sized
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.refit import refit_directions
from hessian_surgery.model import head_fit
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import Head
from hessian_surgery.operation import cost as costs
from hessian_surgery.operation.cost import estimate_cost, try_operation
from hessian_surgery.operation.driver import run
from hessian_surgery.operation.iteration import DEFAULT
from hessian_surgery.operation.memory_stages import check_room, memory_by_stage
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.recalibration import recalibrate as recalibrate_model
from hessian_surgery.operation.size_up import Sizes, plan_for, size_up
from hessian_surgery.operation.stage_seconds import HEAD_EVALUATIONS
from hessian_surgery.paper.loop import LOOP


@pytest.mark.parametrize("method", ["gradients", "differences"])
def test_the_estimate_is_what_is_done(trained, digits_parts, quick, monkeypatch, method):
    """Counts products and images of a real run with fixed Lanczos steps."""
    config = replace(quick, search=replace(quick.search, lanczos_steps=12), calibration_cap=20, sensitivity=method)
    calibration_data = hs.cap_per_class(digits_parts.calibration, 20)
    expected = estimate_cost(hs.Classifier(trained), digits_parts.training, calibration_data, config)
    counted = {"products": 0, "forward": 0, "back": 0}
    product, logits = hs.Hessian.__matmul__, hs.Classifier.logits
    known = {image.numpy().tobytes() for image in calibration_data.inputs()}

    def counting_product(self, vector):
        counted["products"] += 1
        return product(self, vector)

    def counting_images(self, inputs):
        """Those of the calibration set, which the first image of a batch tells from others."""
        result = logits(self, inputs)
        if inputs[0].numpy().tobytes() in known:
            counted["forward"] += len(inputs)
            counted["back"] += len(inputs) * result.requires_grad
        return result

    monkeypatch.setattr(hs.Hessian, "__matmul__", counting_product)
    problem, before = prepare(trained, digits_parts.training, calibration_data, config)
    monkeypatch.setattr(hs.Classifier, "logits", counting_images)
    run(LOOP, problem, Observer())
    assert len(before.predicted) == 200
    assert expected.products == counted["products"] == 36
    assert expected.passes == (8 if method == "gradients" else 3 * 19 + 2)
    assert expected.images == counted["forward"] + 2 * 200  # and one pass before, one after
    assert expected.backward * 200 == counted["back"]
    assert expected.weights == sum(p.numel() for p in trained.parameters())
    assert expected.data_bytes == 200 * 64 * 4


def test_memory_of_the_graph_grows_with_what_is_resident(trained, digits_parts, quick):
    def graph(**options):
        config = replace(quick, search=replace(quick.search, **options))
        cost = estimate_cost(hs.Classifier(trained), digits_parts.training, digits_parts.calibration, config)
        assert cost.total_bytes > cost.graph_bytes > 0
        return cost.graph_bytes

    assert graph(hessian_samples=64) == 2 * graph(hessian_samples=32)
    assert graph(hessian_samples=64, micro_batch=16) == graph(hessian_samples=16)


def test_saved_bytes_are_counted_once_and_without_weights():
    model = torch.nn.Linear(8, 4, bias=False)
    data = hs.as_labelled((torch.randn(3, 8), torch.arange(3)), classes=list("abcd"))
    saved = saved_bytes(hs.Classifier(model), data)
    # The input (8 floats), the log-probabilities (4 floats), the label and the loss's weight sum.
    assert 8 * 4 + 4 * 4 + 8 <= saved <= 8 * 4 + 4 * 4 + 16


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("refit", [False, True])
def test_a_default_operation_costs_gradients_and_passes(
    trained, digits_parts, digits_images, monkeypatch, crossed, refit
):
    """Counts the images that go forward and back; no Hessian product is made.

    With a hundred images of a typical class, the calibration images have gradients too.
    """
    config = hs.SurgeryConfig(budget=0.01, directions="refit" if refit else "class-gradients")
    data = digits_images if crossed else digits_parts.calibration
    expected = estimate_cost(hs.Classifier(trained), digits_parts.training, data, config)
    problem, _ = prepare(trained, digits_parts.training, data, config)
    known = {image.numpy().tobytes() for image in data.inputs()}
    counted = {"forward": 0, "back": 0, "gradients": 0}
    logits = hs.Classifier.logits

    def counting(self, inputs):
        """Those of the calibration set, which the first image of a batch tells from others."""
        result = logits(self, inputs)
        if inputs[0].numpy().tobytes() in known:
            counted["forward"] += len(inputs)
            counted["back"] += len(inputs) * result.requires_grad
        else:
            counted["gradients"] += len(inputs) * result.requires_grad
        return result

    monkeypatch.setattr(hs.Classifier, "logits", counting)
    observer = Keeping()
    run(DEFAULT, replace(problem, with_front=True), observer)
    assert [record.accepted for record in observer.records] == [True]
    assert len(observer.records[0].responses.directions) == expected.directions + 10  # the biases cost nothing
    assert expected.products == 0
    assert expected.directions == (20 if crossed else 10) + refit
    assert expected.gradients == counted["gradients"] == len(problem.gradient_data)
    assert expected.backward == crossed
    assert expected.backward * len(data) == counted["back"]
    # Differences, features; the logits before and after; the report's last; six fits for each
    # objective and start.
    directions, measured = (20 + 1 if crossed else 10) + refit, 12 if refit else 6
    assert expected.passes == directions + 2 + 1 + 2 * measured
    assert expected.images == expected.passes * len(data)
    assert counted["forward"] == (expected.passes - 2) * len(data) + 2  # two images tell where the head is
    assert config.iterations == 1
    again = estimate_cost(hs.Classifier(trained), digits_parts.training, data, replace(config, iterations=2))
    assert again.passes == 2 * (directions - refit + 2) + refit + 1 + 2 * measured + 6


class Cosine(nn.Linear):
    """A head that is linear in name only."""

    def forward(self, x):
        return super().forward(nn.functional.normalize(x, dim=1))


def perceptron(head):
    """A perceptron whose hidden layers give as many outputs as there are classes, or more."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 8), nn.Tanh(), head)
    data = points(60, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.inputs()), data.labels).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize(
    ("head", "parameters", "refit"), [(nn.Linear, "*", True), (nn.Linear, "[02].*", False), (Cosine, "*", False)]
)
def test_a_refit_is_counted_where_there_is_one(monkeypatch, head, parameters, refit):
    """Other linear layers are no head, even if they may move. A step that is tried is left out."""
    net = perceptron(head(8, 3))
    training, data = points(60, 1), points(60, 0)
    config = hs.SurgeryConfig(parameters=parameters, max_drop=1.0)
    expected = estimate_cost(hs.Classifier(net), training, data, config)
    counted, stages = [], []
    logits = hs.Classifier.logits

    def counting(self, inputs):
        """Those of the calibration set, which the first image of a batch tells from others."""
        counted.append(len(inputs) * (inputs[0].numpy().tobytes() in known) * (stages[-1:] != ["measure"]))
        return logits(self, inputs)

    problem, _ = prepare(net, training, data, config)
    known = {image.numpy().tobytes() for image in data.inputs()}
    monkeypatch.setattr(hs.Classifier, "logits", counting)
    observer = Keeping()
    observer.stage = lambda name, *_: stages.append(name)
    run(DEFAULT, replace(problem, with_front=True), observer)
    names = observer.records[0].responses.directions
    assert names.count("refitted head") == refit
    assert expected.directions == len([name for name in names if not name.startswith("bias")]) == 3 + refit
    assert expected.passes == 3 + refit + 2 + 1 + 2 * (12 if refit else 6)
    assert sum(counted) == (expected.passes - 3) * len(data) + 2  # two images tell where the head is


def test_the_head_is_the_layer_that_gives_the_logits():
    """The first layer gives as many outputs, but it reads two features and the head eight."""
    data = points(60, 0)
    config = hs.SurgeryConfig()
    planned = plan_for(hs.Classifier(perceptron(nn.Linear(8, 3))), data, config)
    sizes = size_up(planned, points(60, 1), data, None, None)
    assert planned.head.name == "4"
    assert (sizes.refit, sizes.features, sizes.head) == (True, 4 * 180 * 8, 3 * 9)
    frozen = plan_for(planned.classifier, data, replace(config, parameters="0.*"))
    sizes = size_up(frozen, points(60, 1), data, None, None)
    assert (frozen.head, frozen.config.directions) == (None, "class-gradients")
    assert (sizes.refit, sizes.features, sizes.head) == (False, 0, 0)


def test_a_refit_has_seconds_in_the_first_iteration():
    data, classifier = points(60, 0), hs.Classifier(perceptron(nn.Linear(8, 3)))
    config = hs.SurgeryConfig()
    trial = try_operation(classifier, data, config)
    assert trial.head > 0
    assert try_operation(classifier, data, replace(config, directions="class-gradients")).head == 0
    for iterations in (1, 3):
        costs = [
            estimate_cost(classifier, points(60, 1), data, replace(config, iterations=iterations), trial=given)
            for given in (trial, replace(trial, head=trial.head + 1))
        ]
        taken = [next(stage.seconds for stage in cost.stages if stage.name == "directions") for cost in costs]
        assert taken[1] - taken[0] == pytest.approx(HEAD_EVALUATIONS * len(data))


def test_the_head_s_fit_is_evaluated_about_as_often_as_is_announced(trained, digits_parts, monkeypatch):
    """For two halves with half of the images each, within a factor of two."""
    evaluated = []

    def counting(*given, **options):
        found = minimize(*given, **options)
        evaluated.append(found.nfev)
        return found

    monkeypatch.setattr(head_fit, "minimize", counting)
    data = digits_parts.calibration
    probe = Probe(
        hs.Classifier(trained), hs.parameter_space(trained), data, compute_logits(hs.Classifier(trained), data)
    )
    refit_directions(probe, Head("fc", trained.fc))
    assert len(evaluated) == 2
    assert HEAD_EVALUATIONS / 2 <= sum(evaluated) / 2 <= 2 * HEAD_EVALUATIONS


def test_a_model_that_cannot_be_run_is_refused_as_such(digits_parts):
    """Room in memory is asked for once the model is known to run."""
    with pytest.raises(hs.InputError, match="model: it cannot take inputs of shape"):
        hs.operate(
            nn.Sequential(nn.Flatten(), nn.Linear(5, 10)),
            training_data=digits_parts.training,
            calibration_data=digits_parts.calibration,
            heldout_data=digits_parts.heldout,
        )


@pytest.mark.parametrize(("directions", "more_passes"), [("biases", 1), ("refit", 2)])
def test_a_recalibration_takes_one_more_pass_or_two(trained, digits_parts, monkeypatch, directions, more_passes):
    """The second is of the crossed step, if there is one."""
    parts, classifier = digits_parts, hs.Classifier(trained)
    trial = try_operation(classifier, parts.calibration, hs.SurgeryConfig())
    costs = [
        estimate_cost(classifier, parts.training, parts.calibration, config, None, parts.heldout, trial)
        for config in [hs.SurgeryConfig(directions=directions, recalibrate=asked) for asked in (False, True)]
    ]
    assert costs[1].passes == costs[0].passes + more_passes
    assert costs[1].images == costs[0].images + more_passes * len(parts.calibration)
    more = costs[1].seconds - costs[0].seconds
    assert more == pytest.approx(more_passes * len(parts.calibration) * trial.forward.seconds)
    counted = [0, 0]
    for i, recalibrate in enumerate((False, True)):
        logits = hs.Classifier.logits

        def counting(self, inputs, i=i, logits=logits):
            counted[i] += len(inputs)
            return logits(self, inputs)

        with monkeypatch.context() as patched:
            patched.setattr(hs.Classifier, "logits", counting)
            config = hs.SurgeryConfig(recalibrate=recalibrate)
            problem, _ = prepare(trained, parts.training, parts.calibration, config)
            counted[i] = 0
            recalibrate_model(problem)
    assert counted == [0, len(parts.calibration) + 2]  # two images tell where the head is


def test_biases_alone_take_a_few_passes(trained, digits_parts, monkeypatch):
    """The logits before and after; the report's last."""
    config = hs.SurgeryConfig(directions="biases", budget=0.01)
    parts = digits_parts
    expected = estimate_cost(hs.Classifier(trained), parts.training, parts.calibration, config)
    assert (expected.passes, expected.directions, expected.gradients, expected.products) == (3, 0, 0, 0)
    counted = []
    logits = hs.Classifier.logits

    def counting(self, inputs):
        counted.append(len(inputs))
        return logits(self, inputs)

    problem, _ = prepare(trained, parts.training, parts.calibration, config)
    monkeypatch.setattr(hs.Classifier, "logits", counting)
    observer = Keeping()
    run(DEFAULT, problem, observer)
    assert [record.accepted for record in observer.records] == [True]
    assert sum(counted) == len(parts.calibration) + 2


def test_few_images_of_a_typical_class_have_no_gradients(trained, digits_parts, digits_images):
    """A cap counts, and so does the typical class: the mean of the classes does not."""

    def directions(data, **choices):
        config = hs.SurgeryConfig(**choices)
        cost = estimate_cost(hs.Classifier(trained), digits_parts.training, data, config)
        assert (cost.backward == 1) == (cost.directions == 20 + 1)
        return cost.directions - 1  # the refit

    assert directions(digits_images) == directions(digits_images, calibration_cap=100) == 20
    assert directions(digits_images, calibration_cap=99) == 10
    few = torch.cat([(digits_images.labels == j).nonzero()[:99, 0] for j in range(6)])
    many = (digits_images.labels > 5).nonzero()[:, 0].repeat(2)
    uneven = digits_images.subset(torch.cat([few, many]))
    assert float(uneven.counts.double().mean()) > 100
    assert directions(uneven) == 10


class Keeping(Observer):
    """Keeps the records."""

    def __init__(self):
        self.records = []

    def iteration(self, record):
        self.records.append(record)


def test_a_trial_gives_seconds_and_memory_by_stage(trained, digits_parts):
    """The weights come back, and the peak is that of the largest stage."""
    parts = digits_parts
    classifier, config = hs.Classifier(trained), hs.SurgeryConfig()
    before = [weight.clone() for weight in trained.parameters()]
    trial = try_operation(classifier, parts.calibration, config)
    assert all(torch.equal(*pair) for pair in zip(before, trained.parameters(), strict=True))
    cost = estimate_cost(classifier, parts.training, parts.calibration, config, None, parts.heldout, trial)
    assert [stage.name for stage in cost.stages] == ["prepare", "directions", "plan", "front", "measure", "report"]
    assert cost.total_bytes == max(stage.host_bytes for stage in cost.stages)
    assert all(stage.device_bytes == stage.disk_bytes == 0 < stage.seconds for stage in cost.stages)
    assert cost.seconds == pytest.approx(sum(stage.seconds for stage in cost.stages))
    assert cost.spilled == ()


def test_a_forward_pass_holds_what_its_layers_make():
    """Of three layers, two results are held at a time."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 1000), torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 3))
    data = hs.as_labelled((torch.randn(64, 8), torch.arange(64) % 3))
    forward = try_operation(hs.Classifier(net), data, hs.SurgeryConfig()).forward
    assert 2 * 64 * 4000 <= forward.nbytes <= 2.1 * 64 * 4000
    assert forward.at(128) == 2 * forward.nbytes + forward.fixed


def test_what_does_not_fit_goes_to_disk(trained, digits_parts):
    room = Room(50_000, 50_000, 10**9)
    parts = digits_parts
    cost = estimate_cost(hs.Classifier(trained), parts.training, parts.calibration, hs.SurgeryConfig(), room=room)
    rows = 10 * 4 * cost.weights
    assert cost.spilled[0] == f"gradients: {sized(rows)} in temporary files"
    assert max(stage.disk_bytes for stage in cost.stages) > rows


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (Room(10**7, 10**7, 10**9), ["needs about", "mostly for libraries", "a machine with more"]),
        (Room(10**8, 10**8, 10**9), []),
    ],
)
def test_an_operation_that_cannot_fit_is_refused_before_it_starts(trained, digits_parts, monkeypatch, free, words):
    monkeypatch.setattr(costs, "free_room", lambda device: free)
    parts = digits_parts
    arguments = (hs.Classifier(trained), parts.training, parts.calibration, parts.heldout, hs.SurgeryConfig())
    if not words:
        costs.check_memory(*arguments)
        return
    with pytest.raises(hs.InputError) as refused:
        hs.operate(
            trained,
            training_data=parts.training,
            calibration_data=parts.calibration,
            heldout_data=parts.heldout,
        )
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("part", "option"),
    [("vector", "parameters="), ("forward", "batch_size="), ("head", "directions='class-gradients'")],
)
def test_the_option_that_helps_is_named(part, option):
    sizes = Sizes(0, 100, 100, 100, 100, 10, 5, 100, 100, (5,), 5, False, refit=True)
    room = Room(10**9, 10**9, 10**12)
    large = replace(sizes, **{part: 10**10})
    with pytest.raises(hs.InputError, match=option):
        check_room(memory_by_stage(large, room), room, torch.device("cpu"))
    check_room(memory_by_stage(sizes, room), room, torch.device("cpu"))
