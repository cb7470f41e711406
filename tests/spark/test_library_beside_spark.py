"""A program with a Spark session of its own tries pipelines out with Spark, and has its session as it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark]

_PROGRAM = """
import json, os, sys
from datetime import datetime
from pyspark.sql import SparkSession

theirs = SparkSession.builder.master("local[1]").appName("theirs").config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
os.environ["JAVA_TOOL_OPTIONS"] = "-Xlog:gc:stdout"  # a JVM may say what it likes on its output
before = dict(os.environ)

import tidemark

group = {"$group": {"_id": "$k", "n": {"$sum": 1}}}
window = {"$tumblingWindow": {"interval": {"size": 1, "unit": "day"}, "pipeline": [group]}}
pipeline = {"pipeline": [{"$source": {"timeField": "$t", "documents": []}}, window]}
rows = [{"t": datetime(2024, 1, 1, hour), "k": hour % 2} for hour in range(6)]
found = tidemark.try_out(pipeline, rows, engine="spark").documents
after = theirs.conf.get("spark.sql.session.timeZone"), theirs.sparkContext.appName, theirs.range(3).count()
json.dump([found, after, before == dict(os.environ)], open(sys.argv[1], "w"))
"""


def test_a_programs_session_is_not_taken(tmp_path: Path) -> None:
    """It goes on with its settings, and the variables of the process are as they were."""
    answer = tmp_path / "answer.json"
    subprocess.run([sys.executable, "-c", _PROGRAM, str(answer)], check=True, timeout=300)
    found, after, same = json.loads(answer.read_text())
    assert sorted(found, key=lambda row: row["_id"]) == [{"_id": 0, "n": 3}, {"_id": 1, "n": 3}]
    assert after == ["Asia/Tokyo", "theirs", 3]
    assert same
