"""What people would do instead of an operation."""
