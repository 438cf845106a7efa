"""Hessian products, Lanczos and the spikes it finds."""
