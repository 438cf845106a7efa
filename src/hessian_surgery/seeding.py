"""Random draws that depend on (seed, stage, iteration) only: a resumed run repeats them."""

import zlib

import numpy as np
import torch


def generator(seed: int, stage: str, iteration: int = 0) -> torch.Generator:
    """A generator for one stage of one iteration. It draws on the CPU: the same on every device."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(stage.encode()), iteration])
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))


def numpy_generator(seed: int, stage: str) -> np.random.Generator:
    """NumPy's generator for one stage."""
    return np.random.default_rng(generator(seed, stage).initial_seed())
