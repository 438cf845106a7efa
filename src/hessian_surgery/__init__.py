"""Hessian Surgery: lift the weak classes of a classifier by a small step in weight space.

A public name is imported when it is first used, so that `hessian-surgery --help` needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hessian_surgery.version import __version__ as __version__

if TYPE_CHECKING:
    from hessian_surgery.baselines.finetune import FinetuneConfig, finetune
    from hessian_surgery.baselines.outputs import ModelOutputs, load_logits
    from hessian_surgery.baselines.train import TrainConfig, train
    from hessian_surgery.comparison.advice import Advice, advise
    from hessian_surgery.comparison.compare import compare, compare_logits
    from hessian_surgery.comparison.fronts import Fronts
    from hessian_surgery.comparison.protocol import Protocol
    from hessian_surgery.comparison.row import Row
    from hessian_surgery.comparison.saved_fronts import save_comparison
    from hessian_surgery.curvature.basis import Storage
    from hessian_surgery.curvature.deflation import Deflated
    from hessian_surgery.curvature.density import Density, spectral_density
    from hessian_surgery.curvature.gauss_newton import GaussNewton
    from hessian_surgery.curvature.hessian import Hessian
    from hessian_surgery.curvature.lanczos import Spectrum, lanczos
    from hessian_surgery.curvature.operators import FunctionOperator
    from hessian_surgery.curvature.search import SpikeSearch
    from hessian_surgery.data.datamodule import datamodule_parts
    from hessian_surgery.data.labelled import LabelledSet, as_labelled
    from hessian_surgery.data.leaks import drop_shared
    from hessian_surgery.data.readers.digits import digits
    from hessian_surgery.data.splits import cap_per_class, hessian_batch, stratified_split
    from hessian_surgery.distributed import joined_ranks
    from hessian_surgery.errors import InputError
    from hessian_surgery.evidence.asked import Asked
    from hessian_surgery.evidence.before_after import BeforeAfter
    from hessian_surgery.evidence.deciles import ClassGroup
    from hessian_surgery.evidence.difference import Difference
    from hessian_surgery.evidence.effective_rank import SensitivityStructure
    from hessian_surgery.evidence.metrics import Metrics
    from hessian_surgery.evidence.paired_tests import ClassTest, Flow, PairedTests
    from hessian_surgery.evidence.promises import Promise
    from hessian_surgery.evidence.verdict import Verdict
    from hessian_surgery.model.classifier import Classifier
    from hessian_surgery.model.losses import class_balanced, class_weighted, cross_entropy, focal, label_smoothing
    from hessian_surgery.model.parameters import ParameterSpace, parameter_space
    from hessian_surgery.model.pretrained import Pretrained, open_pretrained
    from hessian_surgery.model.smallnet import train_smallnet
    from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
    from hessian_surgery.operation.findings import Findings
    from hessian_surgery.operation.forecast import Expected, Forecast
    from hessian_surgery.operation.iteration_record import IterationRecord, StepRecord
    from hessian_surgery.operation.observer import Observer
    from hessian_surgery.operation.operate import operate
    from hessian_surgery.operation.outcome import Outcome
    from hessian_surgery.paper.config import LoopConfig
    from hessian_surgery.paper.diagnosis import Diagnosis, SpikeDiagnosis, diagnose
    from hessian_surgery.paper.loop_record import LoopRecord
    from hessian_surgery.paper.plan import Plan, plan
    from hessian_surgery.paper.presets import paper_config
    from hessian_surgery.paper.sensitivity import sensitivity
    from hessian_surgery.paper.sensitivity_gradients import gradient_sensitivity
    from hessian_surgery.ranks import Ranks
    from hessian_surgery.report.trainer_callback import diagnosis_callback
    from hessian_surgery.report.write_report import write_report
    from hessian_surgery.serve.agreement import Agreement
    from hessian_surgery.serve.export import check_onnx, export
    from hessian_surgery.serve.onnx_bias import patch_onnx
    from hessian_surgery.studies.bulk_walk import BulkWalk, bulk_walk
    from hessian_surgery.studies.effective_rank import EffectiveRank, effective_rank_study
    from hessian_surgery.studies.linearization import Linearization, linearization
    from hessian_surgery.studies.spectrum import SpectrumReport, spectrum_study
    from hessian_surgery.studies.stability import Stability, stability

__all__ = [
    "Advice",
    "Agreement",
    "Asked",
    "BeforeAfter",
    "BulkWalk",
    "ClassGroup",
    "ClassTest",
    "Classifier",
    "Deflated",
    "Density",
    "Diagnosis",
    "Difference",
    "EffectiveRank",
    "Expected",
    "Findings",
    "FinetuneConfig",
    "Flow",
    "Forecast",
    "Fronts",
    "FunctionOperator",
    "GaussNewton",
    "Hessian",
    "InputError",
    "IterationRecord",
    "LabelledSet",
    "Linearization",
    "LoopConfig",
    "LoopRecord",
    "Metrics",
    "ModelOutputs",
    "Observer",
    "OperationConfig",
    "Outcome",
    "PairedTests",
    "ParameterSpace",
    "Plan",
    "Pretrained",
    "Promise",
    "Protocol",
    "Ranks",
    "Row",
    "SensitivityStructure",
    "Spectrum",
    "SpectrumReport",
    "SpikeDiagnosis",
    "SpikeSearch",
    "Stability",
    "StepRecord",
    "Storage",
    "SurgeryConfig",
    "TrainConfig",
    "Verdict",
    "advise",
    "as_labelled",
    "bulk_walk",
    "cap_per_class",
    "check_onnx",
    "class_balanced",
    "class_weighted",
    "compare",
    "compare_logits",
    "cross_entropy",
    "datamodule_parts",
    "diagnose",
    "diagnosis_callback",
    "digits",
    "drop_shared",
    "effective_rank_study",
    "export",
    "finetune",
    "focal",
    "gradient_sensitivity",
    "hessian_batch",
    "joined_ranks",
    "label_smoothing",
    "lanczos",
    "linearization",
    "load_logits",
    "open_pretrained",
    "operate",
    "paper_config",
    "parameter_space",
    "patch_onnx",
    "plan",
    "save_comparison",
    "sensitivity",
    "spectral_density",
    "spectrum_study",
    "stability",
    "stratified_split",
    "train",
    "train_smallnet",
    "write_report",
]

# Where each public name is: the imports above, for use when the program runs.
_PLACES = {
    "baselines.finetune": "FinetuneConfig finetune",
    "baselines.outputs": "ModelOutputs load_logits",
    "baselines.train": "TrainConfig train",
    "comparison.advice": "Advice advise",
    "comparison.compare": "compare compare_logits",
    "comparison.fronts": "Fronts",
    "comparison.protocol": "Protocol",
    "comparison.row": "Row",
    "comparison.saved_fronts": "save_comparison",
    "curvature.basis": "Storage",
    "curvature.deflation": "Deflated",
    "curvature.density": "Density spectral_density",
    "curvature.gauss_newton": "GaussNewton",
    "curvature.hessian": "Hessian",
    "curvature.lanczos": "Spectrum lanczos",
    "curvature.operators": "FunctionOperator",
    "curvature.search": "SpikeSearch",
    "data.datamodule": "datamodule_parts",
    "data.labelled": "LabelledSet as_labelled",
    "data.leaks": "drop_shared",
    "data.readers.digits": "digits",
    "data.splits": "cap_per_class hessian_batch stratified_split",
    "distributed": "joined_ranks",
    "errors": "InputError",
    "evidence.asked": "Asked",
    "evidence.before_after": "BeforeAfter",
    "evidence.deciles": "ClassGroup",
    "evidence.difference": "Difference",
    "evidence.effective_rank": "SensitivityStructure",
    "evidence.metrics": "Metrics",
    "evidence.paired_tests": "ClassTest Flow PairedTests",
    "evidence.promises": "Promise",
    "evidence.verdict": "Verdict",
    "model.classifier": "Classifier",
    "model.losses": "class_balanced class_weighted cross_entropy focal label_smoothing",
    "model.parameters": "ParameterSpace parameter_space",
    "model.pretrained": "Pretrained open_pretrained",
    "model.smallnet": "train_smallnet",
    "operation.config": "OperationConfig SurgeryConfig",
    "operation.findings": "Findings",
    "operation.forecast": "Expected Forecast",
    "operation.iteration_record": "IterationRecord StepRecord",
    "operation.observer": "Observer",
    "operation.operate": "operate",
    "operation.outcome": "Outcome",
    "paper.config": "LoopConfig",
    "paper.diagnosis": "Diagnosis SpikeDiagnosis diagnose",
    "paper.loop_record": "LoopRecord",
    "paper.plan": "Plan plan",
    "paper.presets": "paper_config",
    "paper.sensitivity": "sensitivity",
    "paper.sensitivity_gradients": "gradient_sensitivity",
    "ranks": "Ranks",
    "report.trainer_callback": "diagnosis_callback",
    "report.write_report": "write_report",
    "serve.agreement": "Agreement",
    "serve.export": "check_onnx export",
    "serve.onnx_bias": "patch_onnx",
    "studies.bulk_walk": "BulkWalk bulk_walk",
    "studies.effective_rank": "EffectiveRank effective_rank_study",
    "studies.linearization": "Linearization linearization",
    "studies.spectrum": "SpectrumReport spectrum_study",
    "studies.stability": "Stability stability",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, and what the module holds besides."""
    return sorted({*globals(), *__all__})
