"""The operation: sensitivity, planning, amplitude, the loop and its outcome."""
