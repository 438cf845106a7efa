"""A callback for transformers' `Trainer`: a diagnosis at each evaluation."""

from pathlib import Path
from typing import Any

from hessian_surgery.data.labelled import Data, as_part
from hessian_surgery.files import write_json
from hessian_surgery.import_by_name import import_extra
from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.paper.diagnosis import Diagnosis, diagnose
from hessian_surgery.version import SCHEMA_VERSION


def diagnosis_callback(
    training_data: Data,
    calibration_data: Data,
    folder: str | Path | None = None,
    config: OperationConfig | None = None,
) -> Any:
    """Make a callback that diagnoses the model whenever a `Trainer` evaluates it.

    The evaluation's metrics get `eval_sigma`, `eval_worst_class` and `eval_forecast_sigma`, as
    fractions; both σ are without sampling noise. `metric_for_best_model="sigma"` with
    `greater_is_better=False` keeps the model with the most even classes. The callback's `found`
    lists every `Diagnosis`. Nothing is drawn at random, and the model is left as it was, so the
    training is the same with or without it. Metrics are logged before callbacks are told: set the
    callback's `trainer`, and TensorBoard, other loggers and the console get the figures too.

    Args:
        training_data: the texts or images that the model is trained on; they are counted and, if
            they are in memory, compared with the others.
        calibration_data: those that class accuracies are measured on.
        folder: gets `step-000100.json`, and so on: the contents of `diagnosis.json`.
        config: as for `diagnose`: the goal that is forecast.

    Example:
        >>> callback = hs.diagnosis_callback(train, calibration)  # doctest: +SKIP
        >>> callback.trainer = Trainer(model, arguments, callbacks=[callback])  # doctest: +SKIP
        >>> callback.trainer.train()  # doctest: +SKIP
        >>> callback.found[-1].forecast.sigma.before  # doctest: +SKIP
    """
    transformers: Any = import_extra("transformers", "diagnosis_callback", "hf")
    training = as_part(training_data, "training_data")
    calibration = as_part(calibration_data, "calibration_data").resident()
    place = None if folder is None else Path(folder)
    base = transformers.TrainerCallback

    class DiagnosisCallback(base):  # type: ignore[misc, valid-type]
        """Diagnoses at each evaluation."""

        def __init__(self) -> None:
            self.found: list[Diagnosis] = []
            self.trainer: Any = None

        def on_evaluate(
            self, args: Any, state: Any, control: Any, model: Any = None, metrics: Any = None, **_: Any
        ) -> None:
            """Diagnose; add to the metrics and to the log; write a file."""
            if model is None or not state.is_world_process_zero:
                return
            diagnosis = diagnose(model, training_data=training, calibration_data=calibration, config=config)
            self.found.append(diagnosis)
            _log(_figures(diagnosis), metrics, state, self.trainer)
            if place is not None:
                content = {"schema_version": SCHEMA_VERSION, "step": state.global_step, "epoch": state.epoch}
                write_json(place / f"step-{state.global_step:06d}.json", content | diagnosis.as_dict())

    return DiagnosisCallback()


def _log(figures: dict[str, float], metrics: dict[str, Any] | None, state: Any, trainer: Any) -> None:
    """Add to an evaluation's metrics, and to the log: the trainer's, if that is known."""
    if metrics is not None:
        metrics.update(figures)
    if trainer is not None:
        trainer.log(figures)
    elif state.log_history:
        state.log_history[-1].update(figures)


def _figures(diagnosis: Diagnosis) -> dict[str, float]:
    """What is logged, as fractions; both σ are without sampling noise."""
    return {
        "eval_sigma": diagnosis.forecast.sigma.before,
        "eval_worst_class": diagnosis.metrics.worst,
        "eval_forecast_sigma": diagnosis.forecast.sigma.after,
    }
