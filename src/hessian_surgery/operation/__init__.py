"""The default operation, and what it shares with the paper's algorithm."""
