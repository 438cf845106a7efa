"""The paper's algorithm, a guest of `operation`."""
