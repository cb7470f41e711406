"""A check that all numeric settings share: they are positive, unless zero is said to be allowed."""

from dataclasses import fields


def check_positive(settings: object, what: str, *, but: frozenset[str] = frozenset()) -> None:
    """ValueError that names the first whole number of a dataclass that is below one.

    what: name of the settings' owner; "" where that is plain. but: those that may be zero.
    """
    setting = f"{what} setting" if what else "setting"
    for each in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, each.name)
        if type(value) is int and value < (0 if each.name in but else 1):
            least = "0 or more" if each.name in but else "a positive number"
            raise ValueError(f"{setting} {each.name}: expected {least}, found {value}")
