import numpy as np
import pytest
import torch
from report_checks import check_report

import hessian_surgery as hs
from hessian_surgery.paper.plan import strong_floor
from hessian_surgery.paper.sensitivity import accuracies
from hessian_surgery.studies import linearization as study
from hessian_surgery.studies.linearization import AMPLITUDES, Step, fit_norms, linearization


def sweep(model, parts, **options):
    given = {"amplitudes": (0.02, 0.05, 0.1, 0.2, 0.4), "epsilon": 0.05} | options
    search = hs.SpikeSearch(spikes=4, hessian_samples=64)
    return linearization(model, parts.training, parts.calibration, search, **given)


def test_each_step_by_hand(trained, digits_parts, tmp_path):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    seen = []
    result = sweep(trained, digits_parts, strong_above=0.85, progress=lambda done, total: seen.append((done, total)))
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)

    data = digits_parts.calibration
    classifier = hs.Classifier(trained)
    spectrum = hs.lanczos(hs.Hessian(trained, hs.hessian_batch(digits_parts.training, 64)), 4)
    matrix = hs.sensitivity(trained, spectrum, data, 0.05)
    assert result.sensitivity == matrix.tolist()
    start = accuracies(classifier, data)
    floor = strong_floor(start, threshold=0.85)
    for step in result.steps:
        plan = hs.plan(matrix, start, step.alpha_max, 2, floor=floor)
        assert step.alpha == plan.alpha.tolist()
        assert step.norm <= step.alpha_max * (1 + 1e-9)
        spectrum.space.perturb(spectrum.vectors.T @ torch.tensor(plan.alpha, dtype=torch.float32))
        measured = accuracies(classifier, data) - start
        trained.load_state_dict(before)
        assert step.measured == pytest.approx(measured, abs=1e-12)
        norms = [np.linalg.norm(change) for change in (matrix.T @ plan.alpha, measured, plan.predicted - measured)]
        assert [step.predicted_norm, step.measured_norm, step.error_norm] == pytest.approx(norms)
    check_report(study, result, tmp_path)
    assert result.strong_above == 0.85


def test_the_threshold_decides_who_is_protected(trained, digits_parts):
    """The paper's 0.85, or the mean plus one σ: other plans."""
    ours, papers = (sweep(trained, digits_parts, amplitudes=(0.4,), strong_above=s) for s in (None, 0.85))
    start = accuracies(hs.Classifier(trained), digits_parts.calibration)
    assert ours.strong_above == pytest.approx(start.mean() + start.std())
    strong = start > 0.85
    assert strong.sum() > (start > ours.strong_above).sum()
    assert min(np.array(papers.steps[0].predicted)[strong]) >= -0.01 - 1e-6
    assert papers.steps[0].alpha != ours.steps[0].alpha
    with pytest.raises(hs.InputError, match="strong_above: got 85; it must be a fraction"):
        sweep(trained, digits_parts, strong_above=85)


def test_weights_come_back_after_a_failure(trained, digits_parts):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    with pytest.raises(hs.InputError, match="got -1"):
        sweep(trained, digits_parts, amplitudes=(0.1, -1))
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_a_probe_too_small_to_flip_an_image_gives_no_fit_but_a_reason(trained, digits_parts, tmp_path):
    result = sweep(trained, digits_parts, epsilon=1e-9)
    assert np.abs(result.sensitivity).max() == 0
    for fit in (result.fits.predicted, result.fits.measured, result.fits.error, result.fits.error_power_law):
        assert fit.curve is None
        assert fit.failure
    assert result.fits.damping is None
    check_report(study, result, tmp_path)


def steps(predicted, measured, error):
    """Steps whose norms are the given functions of ‖α‖."""
    x = np.array(AMPLITUDES)
    rows = zip(x, predicted(x), measured(x), error(x), strict=True)
    return [Step(norm, [norm], norm, [0.0], [0.0], *norms) for norm, *norms in rows]


def test_the_papers_curves_come_back():
    """Appendix D's own numbers: slopes 1.11 and 0.63, the error 2.5e-3 + 0.94 x^1.08."""
    fits = fit_norms(steps(lambda x: 1.11 * x, lambda x: 1.5e-3 + 0.63 * x, lambda x: 2.5e-3 + 0.94 * x**1.08))
    assert fits.predicted.curve.slope == pytest.approx(1.11)
    assert (fits.measured.curve.intercept, fits.measured.curve.slope) == pytest.approx((1.5e-3, 0.63))
    assert fits.damping == pytest.approx(0.57, abs=0.005)
    curve = fits.error.curve
    assert (curve.intercept, curve.slope, curve.exponent) == pytest.approx((2.5e-3, 0.94, 1.08), rel=1e-3)
    assert fits.error_power_law.curve.r_squared < curve.r_squared == pytest.approx(1)


def test_the_grid_is_the_papers():
    assert len(AMPLITUDES) == 38
    assert (AMPLITUDES[0], AMPLITUDES[-1]) == pytest.approx((5e-4, 5.5e-2))


def test_no_amplitude_is_refused(trained, digits_parts):
    with pytest.raises(hs.InputError, match="amplitudes: got none"):
        sweep(trained, digits_parts, amplitudes=())
