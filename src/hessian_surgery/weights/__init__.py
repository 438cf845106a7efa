"""Weights on disk: checkpoints, tensor files, patches that apply and revert."""
