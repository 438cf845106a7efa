"""Labelled data: its readers, splits and checks."""
