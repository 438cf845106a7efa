"""Labelled sets, their splits and their readers."""
