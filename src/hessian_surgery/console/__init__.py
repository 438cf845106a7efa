"""What a person sees in the terminal: progress and tables."""
