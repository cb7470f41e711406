"""The environments that have the readers: this one, and one of the harness's own, made on demand, so that locks do not grow."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.harness.readers.programs import READERS

BUILT: Final = Path(__file__).resolve().parents[3] / ".tidemark" / "readers"
PACKAGES: Final = (
    "chdb==4.4.0", "daft==0.7.26", "datafusion==55.0.0", "deltalake==1.6.6", "duckdb==2.0.1", "pandas==2.3.3", "polars==2.1.0",
    "pyarrow==25.0.1",
    "pyiceberg[sql-sqlite]==0.12.0",
)  # fmt: skip
"""Beside what the lock has. daft takes no PyArrow 26."""
OWN: Final = frozenset(
    {
        "deltalake", "deltalake_to_pandas", "pandas_folder", "pyarrow_folder", "spark_folder", "pyiceberg",
        "pyiceberg_to_pandas", "python_json", "pandas_json",
        "pyarrow_json", "spark_json", "spark_text", "python_csv", "pandas_csv", "pandas_text", "pyarrow_csv", "spark_csv",
    }
)  # fmt: skip
"""Readers of the lock's packages."""


def own(*, spark: bool = True) -> list[str]:
    """The readers that this environment has."""
    names = [name for name in READERS if name.partition(": ")[2] in OWN]
    return [name for name in names if spark or "spark" not in name]


def others() -> list[str]:
    """The readers of the harness's own environment."""
    return [name for name in READERS if name.partition(": ")[2] not in OWN]


def made() -> str:
    """The Python of the harness's own environment, which is made anew where other versions are asked for."""
    told, python = BUILT / "packages.txt", BUILT / "venv" / "bin" / "python"
    wanted = "\n".join(PACKAGES)
    if not told.exists() or told.read_text() != wanted:
        shutil.rmtree(BUILT, ignore_errors=True)
        sys.stdout.write(f"Fetching {', '.join(PACKAGES)}\n")
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "venv", str(BUILT / "venv")], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True
        )
        told.write_text(wanted)
    return str(python)
