"""Folders with tiny Hugging Face models and data, made offline once for all tests that ask."""

import os

from extras import extra

needs_hf = extra("transformers", "datasets")


def make_folders(place):
    """Save each case as `NAME`, in shards, and its data as `NAME-data`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from benchmarks.hugging_face_cases import CASES, digit_images, docstrings, make_model, train

    for case in CASES:
        data = docstrings(0) if case == "bert" else digit_images(0)
        for part, rows in (("train", 1200), ("test", 900)):
            data[part] = data[part].shuffle(seed=0).select(range(min(rows, len(data[part]))))
        pretrained = make_model(case, data, seed=0)
        train(pretrained, data["train"], epochs={"vit": 30, "resnet": 6, "bert": 4}[case], seed=0)
        pretrained.model.save_pretrained(place / case, max_shard_size="60KB")
        pretrained.processor.save_pretrained(place / case)
        data.save_to_disk(place / f"{case}-data")
    return place
