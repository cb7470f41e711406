"""Spark's daemon of Python workers, with the product's packages loaded: every worker that it forks has them at once.

Spark runs it by name (session.py, `spark.python.daemon.module`). Behind each task a worker looks for garbage among all objects that it has.
Objects loaded before the fork are left out of that, because looking at them took longer than the tasks.
"""

import gc

import pandas as pd  # noqa: F401 - Spark's worker loads it with its first task
import pyspark.worker  # noqa: F401 - as above
from pyspark.daemon import manager

import tidemark.spark_stages.executing  # noqa: F401 - to have it loaded before the first worker is forked

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
