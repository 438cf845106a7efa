"""Training-time rivals of surgery: what a person would do instead."""
