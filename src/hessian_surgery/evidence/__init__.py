"""What the answers show: metrics, and tests of answers before and after."""
