"""Directions in weight space, in families, and how the logits change along them."""
