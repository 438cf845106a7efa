"""The exception for bad input; the command line turns it into exit code 2."""


class InputError(ValueError):
    """Bad input. The message names the argument, what it got and what to do, in one line."""
