"""Read numbers and amounts of accuracy from text."""

from hessian_surgery.errors import InputError

# A bare amount of this or more is ambiguous: 0.5 may be meant as 0.5 pp.
CLEAR = 0.1


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


def parse_amount(argument: str, text: str) -> float:
    """Read an amount of accuracy, as a fraction: 0.005, 0.5% and 0.5pp are the same."""
    value, bare = _parse_fraction(argument, text)
    if bare and abs(value) > 1:
        raise InputError(f"{argument}: got {text.strip()}; write {value:g}pp for so many percentage points")
    if bare and abs(value) >= CLEAR:
        points = 100 * value
        raise InputError(
            f"{argument}: got {text.strip()}; that is {points:g} pp; write {points:g}pp if you mean it, or {value:g}pp"
        )
    return value


def parse_amounts(argument: str, text: str) -> tuple[float, ...]:
    """Read amounts of accuracy separated by commas."""
    return tuple(parse_amount(argument, part) for part in text.split(","))


def parse_accuracy(argument: str, text: str) -> float:
    """Read an accuracy, as a fraction: 0.8 and 80% are the same."""
    value, bare = _parse_fraction(argument, text)
    if bare and value > 1:
        raise InputError(f"{argument}: got {text.strip()}; write {value:g}% or {value / 100:g}")
    return value


def _parse_fraction(argument: str, text: str) -> tuple[float, bool]:
    """Return a fraction, and whether it was written without a unit."""
    plain = text.strip()
    number = plain.removesuffix("%") if plain.endswith("%") else plain.removesuffix("pp")
    if number == plain:
        return parse_number(argument, plain), True
    # Rounded, so that 0.1pp is the float 0.001.
    return round(parse_number(argument, number) / 100, 12), False
