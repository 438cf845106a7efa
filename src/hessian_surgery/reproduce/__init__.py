"""Reproduce: every table and figure of the paper, beside the paper's numbers."""
