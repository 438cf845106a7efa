"""The callback: a real `Trainer` trains, and every evaluation is diagnosed."""

import json
import sys

import pytest
import torch

import hessian_surgery as hs
from hugging_face_folders import needs_hf

pytestmark = needs_hf


def make(count, seed):
    """Texts of two numbers; the label is whether the first is the larger."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 12, (count, 6), generator=draw)
    return ids, (ids[:, 0] > ids[:, 1]).long() + (ids[:, 2] > 9).long()


def labelled(count, seed):
    ids, labels = make(count, seed)
    return hs.as_labelled(({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels), classes=("a", "b", "c"))


def trained(place, callbacks, with_trainer=False, **options):
    """Train a tiny BERT for two epochs."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=12, num_labels=3, **size))
    arguments = TrainingArguments(
        output_dir=str(place / "out"),
        num_train_epochs=2,
        per_device_train_batch_size=64,
        eval_strategy="epoch",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        seed=1,
        **options,
    )
    rows = [{"input_ids": i, "labels": y} for i, y in zip(*make(256, 0), strict=True)]
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:64], callbacks=callbacks)
    for callback in callbacks:
        if with_trainer:
            callback.trainer = trainer
    trainer.train()
    return trainer


def test_each_evaluation_is_diagnosed(tmp_path):
    callback = hs.diagnosis_callback(labelled(256, 0), labelled(120, 1), folder=tmp_path / "found")
    best = {"save_strategy": "epoch", "metric_for_best_model": "sigma", "greater_is_better": False}
    trainer = trained(tmp_path, [callback], **best)
    assert [found.noun for found in callback.found] == ["texts", "texts"]
    files = sorted((tmp_path / "found").iterdir())
    assert [file.name for file in files] == ["step-000004.json", "step-000008.json"]
    sigmas = [json.loads(file.read_text())["metrics"]["sigma"] for file in files]
    assert sigmas == [found.metrics.sigma for found in callback.found]
    sigmas = [found.forecast.sigma.before for found in callback.found]
    logged = [entry["eval_sigma"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged == sigmas
    assert trainer.state.best_metric == min(sigmas)
    own = hs.diagnose(trainer.model, training_data=labelled(256, 0), calibration_data=labelled(120, 1))
    assert own.metrics == callback.found[-1].metrics


def test_loggers_are_told_if_the_callback_knows_its_trainer(tmp_path):
    from transformers import TrainerCallback

    told = []

    class Logger(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            told.append((state.global_step, dict(logs)))

    callback = hs.diagnosis_callback(labelled(256, 0), labelled(120, 1))
    best = {"save_strategy": "epoch", "metric_for_best_model": "sigma", "greater_is_better": False}
    trainer = trained(tmp_path, [Logger(), callback], with_trainer=True, **best)
    sigmas = [found.forecast.sigma.before for found in callback.found]
    logged = [(step, logs["eval_sigma"]) for step, logs in told if "eval_sigma" in logs]
    assert logged == [(4, sigmas[0]), (8, sigmas[1])]
    assert [entry["eval_sigma"] for entry in trainer.state.log_history if "eval_sigma" in entry] == sigmas
    assert trainer.state.best_metric == min(sigmas)


def test_the_training_is_the_same_without_it(tmp_path):
    callback = hs.diagnosis_callback(labelled(256, 0), labelled(120, 1))
    states = [trained(tmp_path, callbacks).model.state_dict() for callbacks in ([callback], [])]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_without_transformers_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(hs.InputError, match=r"needs transformers, which is not installed; pip install 'hess.*\[hf\]'"):
        hs.diagnosis_callback(labelled(20, 0), labelled(20, 1))
