"""Weights on disk: checkpoints, tensor files, and patches that can be applied and reverted."""
