from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frazil.query import reads

ROOT = Path(__file__).parents[2]


def test_imports_point_one_way() -> None:
    """In a process of its own: import-linter disables all loggers that a process has."""
    command = [
        sys.executable,
        "-c",
        "import sys, importlinter.cli as cli; sys.exit(cli.lint_imports(no_cache=True))",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_reads_load_no_engine_and_no_storage() -> None:
    """The dashboard imports them in each of its processes."""
    names = [f"frazil.query.reads.{module.name}" for module in pkgutil.iter_modules(reads.__path__)]
    heavy = ("duckdb", "pyiceberg", "fastapi", "streamlit", "pydantic", "opentelemetry", "frazil.lake")
    assert len(names) > 5
    assert loaded(names, heavy) == []


def test_spark_tasks_load_no_catalog_and_no_engine() -> None:
    """Each of Spark's Python workers imports them: catalogs would take half a second of CPU more."""
    names = ["frazil.pipeline.land.task", "frazil.pipeline.maintain.merge.merge"]
    assert loaded(names, ("duckdb", "pyiceberg.catalog", "sqlalchemy", "requests", "boto3", "fastapi")) == []


def loaded(names: Sequence[str], heavy: Sequence[str]) -> list[str]:
    """Those of the heavy modules that importing these modules loads."""
    code = f"import sys, {', '.join(names)}; print(*set({heavy!r}) & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()
