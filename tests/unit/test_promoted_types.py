"""A promoted column whose type is another than the table's is refused before anything runs, with a remedy."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from frazil.cli import app
from frazil.config import Config
from frazil.errors import ConfigError
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import check_promoted, open_table
from frazil.pipeline import run as pipeline_run
from frazil.preflight import check_before_start
from frazil.receive.supervise import run as run_receiver
from frazil.tables import SIGNALS, landed_spec
from frazil.tables.promoted import promoted
from tests.components.process import free_port

LINE = (
    "tables.promoted: column retries has type string in otel.logs, otel.spans, otel.metrics, but the "
    "configuration says int; set its type to string, or give it another name with `column`"
)
UNCHECKED = "not checked: tables.promoted against the existing tables"


def settings(folder: Path, type_: str, **more: Any) -> dict[str, Any]:
    """The name of the folder is one that a URL must quote."""
    listen = {"listen": "127.0.0.1:0"}
    ports = {"receive": {"http": listen, "grpc": listen}, "serve": listen, "pipeline": listen}
    tables = {"promoted": [{"attribute": "retries", "type": type_}]}
    return {"data_dir": str(folder / "da ta"), "dashboard": listen, "tables": tables, **ports, **more}


def config_with(folder: Path, type_: str) -> Config:
    return Config.model_validate(settings(folder, type_))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A lake in which `retries` is text."""
    config = config_with(tmp_path / "lake", "string")
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        for signal in SIGNALS:
            open_table(catalog, config.lake.namespace, landed_spec(signal, promoted(config)), "at 0")
    return tmp_path / "lake"


@pytest.fixture
def signals() -> Iterator[None]:
    """The pipeline sets handlers before it checks anything."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def check(given: dict[str, Any], path: Path) -> Any:
    path.write_text(json.dumps(given))  # JSON is YAML
    return CliRunner().invoke(app, ["-c", str(path), "config", "--check"])


def test_the_check_of_the_configuration_names_column_types_and_remedy_and_changes_nothing(
    made: Path, tmp_path: Path
) -> None:
    before = contents(made)
    result = check(settings(made, "int"), tmp_path / "frazil.yaml")
    assert (result.exit_code, result.stderr) == (2, f"frazil: error: {LINE}\n")
    assert contents(made) == before


def test_every_role_that_writes_refuses_to_start_with_the_same_line(made: Path, signals: None) -> None:
    for start in (run_receiver, pipeline_run.run, check_before_start):
        with pytest.raises(ConfigError) as refused:
            start(config_with(made, "int"))
        assert str(refused.value) == LINE


def test_a_pipeline_whose_catalog_answers_only_later_refuses_then(made: Path) -> None:
    whole = pipeline_run.Pipeline(config_with(made, "int"), threading.Event())
    try:
        with pytest.raises(ConfigError) as refused:
            whole._steps()
        assert str(refused.value) == LINE
    finally:
        whole._close_catalog()
        whole._health.start()
        whole._health.stop()


@pytest.mark.parametrize("type_", ["string", "int"])
def test_a_column_that_fits_or_is_new_is_accepted(made: Path, tmp_path: Path, type_: str) -> None:
    column = {"attribute": "retries", "type": type_} | ({"column": "tries"} if type_ == "int" else {})
    given = settings(made, type_, tables={"promoted": [column]})
    assert check(given, tmp_path / "frazil.yaml").output == "the configuration is valid\n"


def test_a_lake_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    result = check(settings(tmp_path / "new", "int"), tmp_path / "frazil.yaml")
    assert result.output == "the configuration is valid\n"
    assert not (tmp_path / "new").exists()


def test_a_database_without_a_catalog_in_it_stays_without(tmp_path: Path) -> None:
    file = config_with(tmp_path, "int").catalog_file
    file.parent.mkdir(parents=True)
    file.touch()
    result = check(settings(tmp_path, "int"), tmp_path / "frazil.yaml")
    assert result.output == "the configuration is valid\n"
    assert file.read_bytes() == b""


def test_a_catalog_that_does_not_answer_is_said_to_be_not_checked(tmp_path: Path) -> None:
    uri = f"postgresql://nobody@127.0.0.1:{free_port()}/lake"
    lake = {"catalog": {"type": "postgres", "postgres": {"uri": uri}}}
    result = check(settings(tmp_path, "int", lake=lake), tmp_path / "frazil.yaml")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first == "the configuration is valid"
    assert second.startswith(f"{UNCHECKED}: the catalog is unavailable")


def test_a_table_that_cannot_be_read_is_said_to_be_not_checked_and_keeps_no_role_from_starting(
    made: Path, tmp_path: Path
) -> None:
    for path in made.rglob("*.metadata.json"):
        path.unlink()
    result = check(settings(made, "int"), tmp_path / "frazil.yaml")
    assert result.exit_code == 0
    assert f"\n{UNCHECKED}: " in result.output
    config = config_with(made, "int")
    with structlog.testing.capture_logs() as said:
        check_promoted(config, promoted(config)).refuse()
    (line,) = said
    assert line["event"] == "promoted columns not checked"


def test_a_promoted_column_with_the_name_of_another_is_refused_by_the_check_too(tmp_path: Path) -> None:
    given = settings(tmp_path, "int", tables={"promoted": [{"attribute": "service.name"}]})
    result = check(given, tmp_path / "frazil.yaml")
    assert result.exit_code == 2
    assert "declares service_name twice; give the new column another name with `column`" in result.stderr
