"""One reader for each layout of files."""
