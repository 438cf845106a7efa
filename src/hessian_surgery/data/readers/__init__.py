"""A reader for each layout of image files."""
