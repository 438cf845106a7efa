"""Tiny Hugging Face classifiers and their data, made here: nothing is fetched.

A ViT and a ResNet for the demo's noisy, long-tailed digits, and a BERT that tells from a line of a
docstring which module of Python's standard library it documents.
"""

import ast
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import hessian_surgery as hs
from hessian_surgery.seeding import generator

SIDE = 16
# Modules of the standard library with many docstrings.
MODULES = (
    "asyncio",
    "email",
    "http",
    "importlib",
    "inspect",
    "logging",
    "typing",
    "unittest",
    "urllib",
    "xml",
)
WORDS = 1500
CASES = ("vit", "resnet", "bert")
EPOCHS = {"vit": 40, "resnet": 12, "bert": 5}


def digit_images(seed: int) -> datasets.DatasetDict:
    """The demo's digits as images of 16×16: a long-tailed train part and a balanced test part."""
    task = hs.digits(seed, train_share=0.5, tail=0.1, noise=0.1)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"digit {i}" for i in range(10)])}
    )
    found = {}
    for name, part in (("train", task.train), ("test", task.test)):
        pixels = (part.inputs().clamp(-0.5, 1.5)[:, 0] + 0.5) * 127.5  # type: ignore[union-attr, call-overload]
        images = [Image.fromarray(image.byte().numpy()).resize((SIDE, SIDE)) for image in pixels]
        found[name] = datasets.Dataset.from_dict({"image": images, "label": part.labels.tolist()}, features=features)
    return datasets.DatasetDict(found)


def docstring_lines(module: str) -> Iterator[str]:
    """The lines of four words or more in a module's docstrings."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted((root / module).rglob("*.py")) or [root / f"{module}.py"]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (ast.get_docstring(node) or "").splitlines()
                yield from (line.strip() for line in lines if len(line.split()) >= 4)


def docstrings(seed: int) -> datasets.DatasetDict:
    """Lines of docstrings by module: four in ten to train with, the others to test with."""
    rows: dict[str, int] = {}
    for label, module in enumerate(MODULES):
        for line in docstring_lines(module):
            rows.setdefault(line.lower(), label)
    lines, labels = list(rows), torch.tensor(list(rows.values()))
    everything = hs.as_labelled((torch.arange(len(lines)), labels), classes=MODULES)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(MODULES))})
    found = {}
    for name, part in zip(("train", "test"), hs.stratified_split(everything, (0.4, 0.6), seed), strict=True):
        texts = [lines[i] for i in part.index]
        found[name] = datasets.Dataset.from_dict({"text": texts, "label": part.labels.tolist()}, features=features)
    return datasets.DatasetDict(found)


def tokenizer_of(texts: list[str]) -> Any:
    """A tokenizer of words that knows the most frequent ones."""
    normalizer, splitter = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text.lower()))
    vocabulary = ["[PAD]", "[UNK]", *(word for word, _ in counts.most_common(WORDS))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )


def make_model(case: str, data: datasets.DatasetDict, seed: int) -> hs.Pretrained:
    """An untrained model from a configuration, with its processor."""
    names = data["train"].features["label"].names
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(seed)
    if case == "bert":
        tokenizer = tokenizer_of(data["train"]["text"][:])
        config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **small, **labels)
        return hs.Pretrained(transformers.BertForSequenceClassification(config), tokenizer)
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    if case == "vit":
        config = transformers.ViTConfig(image_size=SIDE, patch_size=4, **small, **labels)
        return hs.Pretrained(transformers.ViTForImageClassification(config), processor)
    shape = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    config = transformers.ResNetConfig(**shape, **labels)
    return hs.Pretrained(transformers.ResNetForImageClassification(config), processor)


def train(pretrained: hs.Pretrained, dataset: datasets.Dataset, epochs: int, seed: int) -> None:
    """Train with Adam; the learning rate falls from 3e-3 along half a cosine."""
    module, data = pretrained.model, pretrained.labelled(dataset).resident()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    module.train()
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=generator(seed, "train", epoch))
        for chosen in order.split(64):
            logits = hs.Classifier(module).logits(data.fetch(chosen))
            optimizer.zero_grad()
            hs.cross_entropy(logits, data.labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    module.eval()


def trained_case(case: str, seed: int, epochs: int | None = None) -> tuple[hs.Pretrained, datasets.DatasetDict]:
    """A trained model and its data."""
    data = docstrings(seed) if case == "bert" else digit_images(seed)
    pretrained = make_model(case, data, seed)
    train(pretrained, data["train"], epochs or EPOCHS[case], seed)
    return pretrained, data
