"""Benchmarks: speed, as ratios measured in one process, and memory."""
