"""Spark's daemon of Python workers, with the product's packages loaded: every worker that it forks has them at once.

Spark runs it by name (session.py, `spark.python.daemon.module`).
"""

from pyspark.daemon import manager

import spark_stages.executing  # noqa: F401 - to have it loaded before the first worker is forked

if __name__ == "__main__":
    manager()
