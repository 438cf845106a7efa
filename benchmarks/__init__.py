"""Speed as ratios, measured in one process."""
