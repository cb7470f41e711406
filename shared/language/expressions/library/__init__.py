"""The operators: importing this package declares them all."""

from shared.language.expressions.library import (
    arithmetic,
    arrays,
    convert,
    dates,
    logic,
    objects,
    regexes,
    sets,
    strings,
    totals,
)

MODULES = (arithmetic, arrays, convert, dates, logic, objects, regexes, sets, strings, totals)
LOADED = True
