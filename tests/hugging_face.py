"""A tiny text classifier, a LoRA of it and a data set, made offline, for the README's recipes."""

import random
from pathlib import Path
from typing import Any

import torch

LABELS = ("sad", "calm", "glad")
WORDS = {"sad": "rain loss grey alone late", "calm": "tea sea walk read home", "glad": "sun win song dance gift"}
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def rows(counts: dict[str, int], seed: int) -> dict[str, list[Any]]:
    """So many texts of each label: seven words, of which some are the label's own."""
    draw = random.Random(seed)
    every = " ".join(WORDS.values()).split()
    labels = [label for label, count in counts.items() for _ in range(count)]
    pools = [[WORDS[label].split() if draw.random() < 0.5 else every for _ in range(7)] for label in labels]
    texts = [" ".join(map(draw.choice, pool)) for pool in pools]
    return {"text": texts, "label": [LABELS.index(label) for label in labels]}


def make_dataset() -> Any:
    """Few training texts of one label, and as many test texts of each."""
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))})
    parts = {"train": rows({"sad": 40, "calm": 200, "glad": 200}, 0), "test": rows(dict.fromkeys(LABELS, 300), 1)}
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict(part, features=features) for name, part in parts.items()}
    )


def save_model(folder: Path, dataset: Any) -> None:
    """Train a BERT of some thousand weights for a moment, and save it with its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *" ".join(WORDS.values()).split()])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), num_labels=len(LABELS), **SIZE))
    inputs = tokenizer(dataset["train"]["text"][:], padding=True, return_tensors="pt")
    labels = torch.tensor(dataset["train"]["label"][:])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(30):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def save_lora(model_folder: Path, folder: Path) -> None:
    """Save a LoRA of the model, as training leaves one."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(model_folder)
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"], init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(folder)
