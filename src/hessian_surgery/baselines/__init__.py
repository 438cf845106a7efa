"""What a person would do instead of an operation."""
