"""Directions in weight space, and the logit changes that they make."""
