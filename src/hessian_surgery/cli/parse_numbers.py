"""Read numbers from options."""

from hessian_surgery.errors import InputError


def parse_number(argument: str, text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{argument}: got {text!r}, which is not a number; give one such as 0.5") from error


def parse_numbers(argument: str, text: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    return tuple(parse_number(argument, part) for part in text.split(","))


def parse_whole_numbers(argument: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{argument}: got {text!r}; give whole numbers separated by commas") from error
