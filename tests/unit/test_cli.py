from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import frazil
from frazil import cli, doctor
from frazil.cli import app
from frazil.config import Config, load_config
from frazil.doctor import Check
from frazil.errors import StoreUnavailable
from frazil.keys import hash_key

runner = CliRunner()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the roles' run functions and keeps what they were called with."""
    called: dict[str, Any] = {"returns": 0}

    def run(role: str, config: Config) -> int:
        called.update(config=config, role=role)
        if "raises" in called:
            raise called["raises"]
        return int(called["returns"])

    monkeypatch.setattr("frazil.receive.supervise.run", lambda config: run("receive", config))
    monkeypatch.setattr("frazil.up.run", lambda config, path: run("up", config))
    monkeypatch.setattr("frazil.log.configure_logging", lambda config: called.update(log=config))
    return called


def test_help_lists_every_verb() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for verb in VERBS:
        assert verb in result.output


VERBS = (
    "up",
    "receive",
    "serve",
    "query",
    "demo",
    "doctor",
    "keys",
    "config",
    "pipeline",
    "verify",
    "status",
    "version",
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    result = runner.invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize("words", [[], ["status"], ["up"], ["keys"], ["keys", "new"], ["tag"]])
def test_help_shows_no_type_for_flags(words: list[str]) -> None:
    result = runner.invoke(app, [*words, "--help"])
    assert "--help" in result.output
    assert "bool" not in result.output


def test_help_shows_the_type_of_values() -> None:
    assert "<path>" in runner.invoke(app, ["query", "--help"]).output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from frazil.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'pydantic', 'yaml', 'pyarrow', 'grpc', 'granian', 'obstore', 'opentelemetry'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_version() -> None:
    for words in (["version"], ["--version"]):
        assert runner.invoke(app, words).output == f"frazil {frazil.__version__}\n"


def test_a_configuration_error_is_told_without_a_traceback() -> None:
    Path("frazil.yaml").write_text("log: {levle: debug}")
    result = runner.invoke(app, ["config", "--check"])
    assert result.exit_code == 2
    assert result.stderr == (
        "frazil: error: frazil.yaml:1:7: log.levle: unknown key (given 'debug')\n    did you mean `level`?\n"
    )


def test_other_errors_of_frazil_are_told_the_same_way(supervise: dict[str, Any]) -> None:
    supervise["raises"] = StoreUnavailable("disk full")
    result = runner.invoke(app, ["receive"])
    assert (result.exit_code, result.stderr) == (2, "frazil: error: disk full\n")


def test_the_printed_configuration_can_be_used() -> None:
    result = runner.invoke(app, ["config"])
    Path("mine.yaml").write_text(result.stdout)
    assert load_config(Path("mine.yaml"), {}) == Config()
    assert (
        runner.invoke(app, ["-c", "mine.yaml", "config", "--check"]).output == "the configuration is valid\n"
    )


def test_the_configuration_is_printed_even_when_the_users_is_broken() -> None:
    Path("frazil.yaml").write_text("nonsense: 1")
    assert runner.invoke(app, ["config"]).exit_code == 0


def test_a_missing_configuration_file_is_an_error() -> None:
    result = runner.invoke(app, ["--config", "gone.yaml", "up"])
    assert result.exit_code == 2
    assert "gone.yaml: file does not exist" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "enabled"), [(["up"], False), (["up", "--demo"], True), (["up", "--no-demo"], False)]
)
def test_up_runs_everything_with_demo_traffic_if_asked(
    supervise: dict[str, Any], arguments: list[str], enabled: bool
) -> None:
    supervise["returns"] = 7
    assert runner.invoke(app, arguments).exit_code == 7
    assert supervise["role"] == "up"
    assert supervise["config"].demo.enabled is enabled
    assert supervise["log"] == supervise["config"].log


def test_receive_runs_the_receiver_alone(supervise: dict[str, Any]) -> None:
    Path("frazil.yaml").write_text("receive: {workers: 3}")
    assert runner.invoke(app, ["receive"]).exit_code == 0
    assert (supervise["role"], supervise["config"].receive.workers) == ("receive", 3)


def test_demo_options_reach_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    package, progress = types.ModuleType("frazil.demo"), types.ModuleType("frazil.demo.progress")
    package.DemoOptions = types.SimpleNamespace  # type: ignore[attr-defined]
    totals = types.SimpleNamespace(failed=0)
    progress.run_with_progress = lambda options: given.append(options) or totals  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "frazil.demo", package)
    monkeypatch.setitem(sys.modules, "frazil.demo.progress", progress)
    Path("frazil.yaml").write_text("receive: {http: {listen: '127.0.0.1:9999'}}")
    arguments = [
        "demo",
        "--protocol",
        "http",
        "-r",
        "2.5",
        "-d",
        "2m",
        "--incident",
        "slow",
        "--incident-after",
        "1s",
    ]
    assert runner.invoke(app, arguments).exit_code == 0
    assert vars(given[0]) == {
        "endpoint": "http://127.0.0.1:9999",
        "protocol": "http",
        "traces_per_second": 2.5,
        "duration_seconds": 120,
        "incident": "slow",
        "incident_after_seconds": 1,
        "incident_seconds": 60,
        "api_key": None,
        "ca_file": None,
        "compression": "gzip",
        "seed": None,
    }
    totals.failed = 3
    assert runner.invoke(app, arguments).exit_code == 1
    bad = runner.invoke(app, ["demo", "--duration", "soon"])
    assert bad.exit_code == 2
    assert "must be a duration" in bad.output


def test_a_new_key_is_printed_once_with_the_lines_to_paste() -> None:
    result = runner.invoke(app, ["keys", "new", "--tenant", "shop", "--role", "write"])
    assert result.exit_code == 0
    key = next(line.strip() for line in result.output.splitlines() if line.startswith("  fz_"))
    assert result.output.count(key) == 1
    snippet = result.output[result.output.index("auth:\n") :]
    assert yaml.safe_load(snippet)["auth"]["keys"][0]["hash"] == hash_key(key)
    Path("frazil.yaml").write_text(snippet)
    (configured,) = load_config(environ={}).auth.keys
    assert (configured.name, configured.tenant, configured.roles) == ("shop-key", "shop", {"write"})


def test_odd_key_names_are_quoted() -> None:
    result = runner.invoke(app, ["keys", "new", "--tenant", "007", "--name", "a: {b} 'c' \"d\""])
    Path("frazil.yaml").write_text(result.output[result.output.index("auth:\n") :])
    (configured,) = load_config(environ={}).auth.keys
    assert (configured.name, configured.tenant) == ("a: {b} 'c' \"d\"", "007")
    assert configured.roles == {"read", "write"}


def test_a_key_for_a_bad_tenant_or_role_is_refused() -> None:
    result = runner.invoke(app, ["keys", "new", "--tenant", "../x"])
    assert result.exit_code == 2
    assert "must be a tenant id" in result.output
    assert runner.invoke(app, ["keys", "new", "--tenant", "x", "--role", "root"]).exit_code == 2


def test_doctor_prints_json_and_fails_if_something_must_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("a", "ok", "fine"), Check("b", "warn", "hm", "perhaps [this]")]
    monkeypatch.setattr(doctor, "run_checks", lambda config: checks)
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {"name": "a", "status": "ok", "found": "fine", "fix": None},
        {"name": "b", "status": "warn", "found": "hm", "fix": "perhaps [this]"},
    ]
    checks.append(Check("c", "fail", "broken", "mend it"))
    assert runner.invoke(app, ["doctor", "--json"]).exit_code == 1


def test_doctor_prints_every_fix_for_people_too(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("b", "warn", "hm", "perhaps [this]"), Check("c", "fail", "broken", "mend it")]
    monkeypatch.setattr(doctor, "run_checks", lambda config: checks)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "→ perhaps [this]" in result.output
    assert "→ mend it" in result.output
    assert "2 checks, 1 failed, 1 warnings" in result.output


def test_verify_names_a_corrupt_segment_and_changes_nothing() -> None:
    assert runner.invoke(app, ["verify"]).exit_code == 0
    segment = Path("frazil-data/wal/logs/20261115T081823123-9f86d081884c7d65/00000000000000000000.parquet")
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"PAR1 torn")
    result = runner.invoke(app, ["verify"])
    assert result.exit_code == 1
    assert "is corrupt: not a complete Parquet file (9 bytes)" in result.stdout
    said = json.loads(runner.invoke(app, ["verify", "--json"]).stdout)
    assert (said["ok"], len(said["problems"])) == (False, 1)
    assert not Path("frazil-data/catalog.db").exists()  # looking makes nothing


def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback() -> None:
    code = "import signal, frazil.__main__; print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "True\n"


def test_ctrl_c_before_a_command_has_begun_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130


@pytest.mark.parametrize("role", ["receive", "serve"])
def test_a_role_alone_names_a_data_folder_that_is_a_file(role: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    config = tmp_path / "frazil.yaml"
    anywhere = '{listen: "127.0.0.1:0"}'
    config.write_text(
        f"data_dir: {tmp_path}/data\nserve: {anywhere}\nreceive: {{http: {anywhere}, grpc: {anywhere}}}\n"
    )
    ended = runner.invoke(app, ["--config", str(config), role])
    assert ended.exit_code == 2
    assert "data is a file, not a folder" in ended.stderr
