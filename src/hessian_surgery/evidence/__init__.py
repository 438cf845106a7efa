"""What can be claimed from answers: metrics, tests, before and after."""
