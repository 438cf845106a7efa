"""Rivals of surgery: what else could be done with the same model and the same images."""
