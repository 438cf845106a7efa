"""Classes by name."""

from hessian_surgery.errors import InputError


def class_number(name: object, classes: tuple[str, ...], argument: str) -> int:
    """The number of a class, by its name."""
    if name not in classes:
        if str(name) in classes:
            raise InputError(f"{argument}: got {name!r}; classes have names, so write {str(name)!r}")
        known = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
        raise InputError(f"{argument}: got {name!r}, which is no class; there are {known}")
    return classes.index(str(name))
