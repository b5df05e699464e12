from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import frazil.config
from frazil.config import (
    Config,
    PromotedColumn,
    example_yaml,
    format_bytes,
    is_loopback,
    load_config,
    parse_bytes,
    parse_seconds,
    split_listen,
    tenant_id,
)
from frazil.errors import ConfigError
from frazil.tables import Promoted
from frazil.tables.promoted import promoted

HASH = "sha256:" + "ab" * 32
Load = Callable[..., Config]
Problems = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def run(text: str | None = None, **environ: str) -> Config:
        if text is not None:
            Path("frazil.yaml").write_text(text)
        return load_config(environ=environ)

    return run


@pytest.fixture
def problems(load: Load) -> Problems:
    def run(text: str | None = None, **environ: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, **environ)
        return str(caught.value)

    return run


def test_without_file_and_environment_everything_has_its_default(load: Load) -> None:
    config = load()
    assert config == Config()
    assert config.data_dir == Path("frazil-data")
    assert config.wal_dir == Path("frazil-data/wal")
    assert config.receive.http.listen == "127.0.0.1:4318"
    assert config.receive.grpc.listen == "127.0.0.1:4317"
    assert config.receive.limits.request_bytes_max == 64 << 20
    assert config.receive.limits.in_flight_bytes_max == 128 << 20
    assert config.wal.group_wait == 0.05
    assert config.tenants.default == "default"
    assert not config.demo.enabled


def test_sizes_and_durations_accept_units(load: Load) -> None:
    config = load(
        "wal: {segment_bytes_max: 8MB, group_wait_seconds: 20ms}\nreceive: {shutdown_grace_seconds: 1m}"
    )
    assert config.wal.segment_bytes_max == 8_000_000
    assert config.wal.group_wait_seconds == 0.02
    assert config.receive.shutdown_grace_seconds == 60


def test_the_environment_takes_precedence_over_the_file(load: Load) -> None:
    config = load(
        "log: {level: error, format: json}\nwal: {lanes: 2}",
        FRAZIL_LOG__LEVEL="debug",
        FRAZIL_RECEIVE__LIMITS__REQUEST_BYTES_MAX="1MiB",
        FRAZIL_RECEIVE__HTTP__CORS_ORIGINS='["https://a.example"]',
        FRAZIL_DATA_DIR="/srv/frazil",
        FRAZIL_RECEIVE__GRPC__ENABLED="false",
        UNRELATED="x",
    )
    assert (config.log.level, config.log.format) == ("debug", "json")
    assert config.wal.lanes == 2
    assert config.receive.limits.request_bytes_max == 1 << 20
    assert config.receive.http.cors_origins == ("https://a.example",)
    assert config.data_dir == Path("/srv/frazil")
    assert config.receive.grpc.enabled is False


def test_a_more_specific_variable_takes_precedence_over_its_section(load: Load) -> None:
    config = load(
        None,
        FRAZIL_WAL__S3='{"bucket": "a", "prefix": "p"}',
        FRAZIL_WAL__S3__BUCKET="b",
        FRAZIL_WAL__TYPE="s3",
    )
    assert config.wal.s3 is not None
    assert (config.wal.s3.bucket, config.wal.s3.prefix) == ("b", "p")
    assert config.wal.group_wait == 0.1


def test_null_in_a_variable_unsets_an_optional_value(load: Load) -> None:
    assert load("wal: {group_wait_seconds: 1}", FRAZIL_WAL__GROUP_WAIT_SECONDS="null").wal.group_wait == 0.05


def test_the_file_can_be_named(load: Load, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("log: {level: error}")
    assert load_config(other, {}).log.level == "error"
    assert load_config(None, {"FRAZIL_CONFIG": str(other)}).log.level == "error"


def test_a_named_file_that_is_missing_is_an_error(load: Load, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"gone\.yaml: file does not exist\n    create it .*`frazil config > .*gone\.yaml`",
    ):
        load_config(tmp_path / "gone.yaml", {})
    with pytest.raises(ConfigError, match=r"FRAZIL_CONFIG: file gone\.yaml does not exist"):
        load_config(None, {"FRAZIL_CONFIG": "gone.yaml"})


def test_a_file_that_cannot_be_read_as_text_is_an_error(load: Load) -> None:
    Path("frazil.yaml").write_bytes(b"log: \xff")
    with pytest.raises(ConfigError, match=r"frazil\.yaml: not UTF-8 text \(at byte 5\)"):
        load()


def test_a_typo_in_a_key_gets_its_location_and_a_suggestion(problems: Problems) -> None:
    assert problems("wal:\n  lanes: 2\n  group_wait_secnds: 0.1\n") == (
        "frazil.yaml:3:3: wal.group_wait_secnds: unknown key (given 0.1)\n"
        "    did you mean `group_wait_seconds`?"
    )


def test_a_key_in_the_wrong_section_gets_the_right_section_as_suggestion(problems: Problems) -> None:
    assert problems("wal: {request_bytes_max: 1MiB}") == (
        "frazil.yaml:1:7: wal.request_bytes_max: unknown key (given '1MiB')\n"
        "    did you mean `receive.limits.request_bytes_max`?"
    )


def test_an_unknown_key_without_similar_keys_gets_the_list(problems: Problems) -> None:
    assert problems("log: {zzz: 1}") == (
        "frazil.yaml:1:7: log.zzz: unknown key (given 1)\n    valid keys: level, format"
    )


def test_an_invalid_value_gets_its_location_and_the_allowed_values(problems: Problems) -> None:
    assert problems("log:\n  level: verbose\n") == (
        "frazil.yaml:2:10: log.level: must be one of debug, info, warning, error (given 'verbose')\n"
        "    for example `level: info`"
    )
    assert problems("log:\n  level: Warn\n") == (
        "frazil.yaml:2:10: log.level: must be one of debug, info, warning, error (given 'Warn')\n"
        "    did you mean `warning`?"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "receive: {workers: 99}",
            "frazil.yaml:1:20: receive.workers: must be between 1 and 64 (given 99)\n"
            "    for example `workers: 1`",
        ),
        (
            "receive: {workers: many}",
            "frazil.yaml:1:20: receive.workers: must be a whole number (given 'many')\n"
            "    for example `workers: 1`",
        ),
        (
            "receive: {workers: yes}",
            "frazil.yaml:1:20: receive.workers: must be a number (given true)\n"
            "    true and false are not numbers",
        ),
        (
            "wal: {segment_bytes_max: 8 bananas}",
            "frazil.yaml:1:26: wal.segment_bytes_max: must be a size (given '8 bananas')\n"
            "    for example 8388608, 8MiB or 1GiB (MB and GB are powers of 1000)",
        ),
        (
            "wal: {segment_bytes_max: 1}",
            "frazil.yaml:1:26: wal.segment_bytes_max: must be between 1KiB and 1GiB (given 1)\n"
            "    for example `segment_bytes_max: 8MiB`",
        ),
        (
            "wal: {write_timeout_seconds: -1}",
            "frazil.yaml:1:30: wal.write_timeout_seconds: must be more than 0 (given -1)\n"
            "    for example `write_timeout_seconds: 8`",
        ),
        (
            "wal: {write_timeout_seconds: soon}",
            "frazil.yaml:1:30: wal.write_timeout_seconds: must be a duration (given 'soon')\n"
            "    for example 0.05, 50ms, 2s, 5m or 1h",
        ),
        (
            "wal: {write_timeout_seconds: .inf}",
            "frazil.yaml:1:30: wal.write_timeout_seconds: must be a finite duration (given inf)\n"
            "    for example 0.05, 50ms, 2s, 5m or 1h",
        ),
        (
            "demo: {enabled: perhaps}",
            "frazil.yaml:1:17: demo.enabled: must be true or false (given 'perhaps')\n"
            "    for example `enabled: false`",
        ),
        (
            "log: loud",
            "frazil.yaml:1:6: log: must be a section with keys (given 'loud')\n    valid keys: level, format",
        ),
        (
            "receive: {http: {listen: 4318}}",
            "frazil.yaml:1:26: receive.http.listen: must be text; put it in quotes (given 4318)\n"
            "    for example `listen: 127.0.0.1:4318`",
        ),
        (
            "receive: {http: {listen: ':4318'}}",
            "frazil.yaml:1:26: receive.http.listen: must be host:port (given ':4318')\n"
            "    for example 127.0.0.1:4318, [::1]:4318, or 0.0.0.0:4318 for every IPv4 interface",
        ),
        (
            "wal: {type: s3, s3: {prefix: a}}",
            "frazil.yaml:1:17: wal.s3.bucket: is required but not set\n    for example `bucket: telemetry`",
        ),
        (
            "wal:\n  type: s3\n",
            "frazil.yaml:2:9: wal.type: is s3, but there is no section wal.s3 (given 's3')\n"
            "    add `s3: {bucket: NAME}` below wal",
        ),
        (
            "receive: {http: {cors_origins: https://a.example}}",
            "frazil.yaml:1:32: receive.http.cors_origins: must be a list (given 'https://a.example')\n"
            "    for example `cors_origins: [https://app.example.com]`",
        ),
        (
            "receive: {http: {cors_origins: [https://a.example/]}}",
            "frazil.yaml:1:33: receive.http.cors_origins[0]: must be * or an origin (given 'https://a.example/')\n"
            "    for example https://app.example.com (without a path or trailing /)",
        ),
        (
            "receive: {http: {cors_origins: ['*', https://a.example]}}",
            "frazil.yaml:1:32: receive.http.cors_origins: contains * and other origins, but * already"
            ' allows all (given a list)\n    write only ["*"]',
        ),
        (
            "receive: {http: {logs_path: logs}}",
            "frazil.yaml:1:29: receive.http.logs_path: must be a URL path that starts with / and has no query"
            " (given 'logs')\n    for example /v1/logs",
        ),
        (
            "receive: {http: {logs_path: /metrics}}",
            "frazil.yaml:1:29: receive.http.logs_path: is /metrics, which frazil reserves"
            " (given '/metrics')\n"
            "    for example /v1/metrics",
        ),
        (
            "receive: {http: {logs_path: /v1/traces}}",
            "frazil.yaml:1:29: receive.http.logs_path: uses one path for two signals (given '/v1/traces')\n"
            "    use a different path for each signal",
        ),
        (
            "receive: {limits: {in_flight_bytes_max: 1MiB}}",
            "frazil.yaml:1:41: receive.limits.in_flight_bytes_max: is less than request_bytes_max, so the"
            " largest allowed request could never be accepted (given '1MiB')\n"
            "    raise in_flight_bytes_max or lower request_bytes_max",
        ),
        (
            "wal: {s3: {bucket: b, endpoint: 'http://x'}}",
            "frazil.yaml:1:33: wal.s3.endpoint: has no TLS (given 'http://x')\n"
            "    use https, or set allow_http: true",
        ),
        (
            "wal: {s3: {bucket: b, access_key_id: a}}",
            "frazil.yaml:1:38: wal.s3.access_key_id: is set without secret_access_key (given 'a')\n"
            "    set secret_access_key too, or remove both to use the credentials of the AWS environment",
        ),
        (
            "tenants: {default: a/b}",
            "frazil.yaml:1:20: tenants.default: must be a tenant id: 1 to 64 characters of A-Z a-z 0-9 _ . -"
            " (but not . or ..) (given 'a/b')\n    for example team-a",
        ),
        (
            "tables: {promoted: [{attribute: a.b}, {attribute: a_b}]}",
            "frazil.yaml:1:20: tables.promoted: defines column a_b twice (given a list)\n"
            "    set another `column` for one of them",
        ),
        (
            "tables: {promoted: [{attribute: [a, '']}]}",
            "frazil.yaml:1:33: tables.promoted[0].attribute: must be an attribute name or a list of"
            " names (given a list)\n    for example http.route, or [http.request.method, http.method]",
        ),
        (
            "tables: {promoted: [{attribute: [a, a]}]}",
            "frazil.yaml:1:33: tables.promoted[0].attribute: contains an attribute twice (given a list)\n"
            "    remove the duplicate",
        ),
        *(
            (
                f"tables: {{promoted: [{{attribute: a, type: {type_}, bloom: true}}]}}",
                f"frazil.yaml:1:{51 + len(type_)}: tables.promoted[0].bloom: cannot have a Bloom filter: the "
                f"column's type is {type_}\n    leave bloom out, or set type to string or int",
            )
            for type_ in ("bool", "double")
        ),
        ("- a", "frazil.yaml:1:1: must be a mapping of sections, such as `log: {level: debug}`"),
    ],
)
def test_every_kind_of_bad_value_is_explained(problems: Problems, text: str, expected: str) -> None:
    assert problems(text) == expected


def test_an_invalid_variable_is_named_instead_of_the_line(problems: Problems) -> None:
    assert problems("log: {level: info}", FRAZIL_LOG__LEVEL="verbose") == (
        "FRAZIL_LOG__LEVEL: log.level: must be one of debug, info, warning, error (given 'verbose')\n"
        "    for example FRAZIL_LOG__LEVEL=info"
    )
    assert problems(None, FRAZIL_RECEIVE__WORKERS="0") == (
        "FRAZIL_RECEIVE__WORKERS: receive.workers: must be between 1 and 64 (given '0')\n"
        "    for example FRAZIL_RECEIVE__WORKERS=1"
    )


def test_an_unknown_variable_is_refused_with_a_suggestion(problems: Problems) -> None:
    assert problems(None, FRAZIL_WAL__LAINS="2") == (
        "FRAZIL_WAL__LAINS: wal.lains: unknown key (given '2')\n    did you mean `FRAZIL_WAL__LANES`?"
    )
    assert problems(None, FRAZIL_RECIEVE__WORKERS="2") == (
        "FRAZIL_RECIEVE__WORKERS: recieve: unknown key (given a section)\n    did you mean `FRAZIL_RECEIVE`?"
    )
    assert problems(None, FRAZIL_HTTP__LISTEN="x:1").startswith(
        "FRAZIL_HTTP__LISTEN: http: unknown key (given a section)\n    did you mean `FRAZIL_RECEIVE__HTTP`?"
    )


def test_an_unknown_variable_does_not_hide_a_mistake_in_the_file(problems: Problems) -> None:
    text = problems("log: {level: x}", FRAZIL_LOG__LEVEL__DEEPER="1")
    assert "FRAZIL_LOG__LEVEL__DEEPER" in text


def test_lists_and_sections_in_variables_must_be_json(problems: Problems) -> None:
    assert problems(None, FRAZIL_RECEIVE__HTTP__CORS_ORIGINS="https://a.example") == (
        "FRAZIL_RECEIVE__HTTP__CORS_ORIGINS: receive.http.cors_origins: must be JSON: "
        "Expecting value: line 1 column 1 (char 0)\n"
        "    for example FRAZIL_RECEIVE__HTTP__CORS_ORIGINS='[\"https://app.example.com\"]'"
    )
    assert problems(None, FRAZIL_AUTH__KEYS='[{"name": "a", "tenant": "b", "hash": "c"}]') == (
        "FRAZIL_AUTH__KEYS: auth.keys[0].hash: must be sha256: followed by 64 lower-case hexadecimal digits"
        " (given 1 characters, not shown)\n"
        "    run `frazil keys new --tenant NAME`, which prints the configuration lines"
    )
    assert problems(None, FRAZIL_TENANTS__RATE_LIMITS__BY_TENANT__SHOP="{}") == (
        "FRAZIL_TENANTS__RATE_LIMITS__BY_TENANT__SHOP: tenants.rate_limits.by_tenant.shop: cannot be set"
        " individually from the environment\n    set all of tenants.rate_limits.by_tenant as JSON"
    )


def test_all_problems_are_listed_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    text = problems(
        "log:\n  level: loud\nwall: {}\nwal:\n  lanes: 99\n  lanes: 100\n", FRAZIL_DEMO__TRACES_PER_SECOND="x"
    )
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line.split(": ")[0] for line in lines] == [
        "5 problems in the configuration:",
        "frazil.yaml:2:10",
        "frazil.yaml:3:1",
        "frazil.yaml:6:3",
        "frazil.yaml:6:10",
        "FRAZIL_DEMO__TRACES_PER_SECOND",
    ]


def test_a_yaml_syntax_error_gets_its_line(problems: Problems) -> None:
    assert problems("log:\n  level: info\n format: json\n") == (
        "frazil.yaml:3:2: not valid YAML: expected <block end>, but found '<block mapping start>'"
        " (while parsing a block mapping)\n"
        "    check the line of `format` and the line before it"
    )
    assert problems("log:\n\tlevel: info\n") == (
        "frazil.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token"
        " (while scanning for the next token)\n    indent with spaces, not tabs"
    )


def test_a_key_given_twice_is_refused(problems: Problems) -> None:
    assert problems("log: {level: info}\nwal: {lanes: 1}\nlog: {format: json}\n") == (
        "frazil.yaml:3:1: log: is set twice, first in line 1\n    remove one, or merge them"
    )


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system {}", "data_dir: 2024-13-45", "log: &a {level: *a}", "a: \x01"]
)
def test_unusual_yaml_is_a_configuration_error(problems: Problems, text: str) -> None:
    assert "frazil.yaml" in problems(text)


def test_anchors_and_merges_work(load: Load) -> None:
    config = load(
        "tenants:\n  rate_limits:\n    default: &limit {bytes_per_second: 1MiB}\n"
        "    by_tenant:\n      shop: {<<: *limit, bytes_per_second: 2MiB}\n      Team-B: *limit\n"
    )
    limits = config.tenants.rate_limits
    assert [limit.bytes_per_second for limit in map(limits.of, ("shop", "Team-B", "other")) if limit] == [
        2 << 20,
        1 << 20,
        1 << 20,
    ]
    assert limits.by_tenant["shop"].burst == 2 << 20


def test_a_bad_tenant_name_in_a_mapping_is_refused(problems: Problems) -> None:
    text = problems("tenants: {rate_limits: {by_tenant: {'a/b': {bytes_per_second: 1}}}}")
    assert text.startswith("frazil.yaml:1:37: tenants.rate_limits.by_tenant.a/b: must be a tenant id")


@pytest.mark.parametrize(
    "text",
    [
        "wal: {s3: {bucket: b, secret_access_key: [hunter2]}}",
        "wal: {s3: {bucket: b, secret_acces_key: hunter2}}",
        "wal: {s3: {bucket: b, secret_access_key: hunter2}}",
        "auth: {keys: [{name: a, tenant: b, hash: hunter2}]}",
        "password: hunter2",
        "wal: {s3: {bucket: b, secret_access_key: hunter2: x}}",
    ],
)
def test_secrets_are_in_no_message(problems: Problems, text: str) -> None:
    assert "hunter2" not in problems(text)


def test_secrets_are_in_no_representation(load: Load) -> None:
    config = load("wal: {s3: {bucket: b, access_key_id: a, secret_access_key: hunter2}}")
    assert "hunter2" not in f"{config!r} {config} {config.model_dump_json()}"
    assert config.wal.s3 is not None
    assert config.wal.s3.secret_access_key is not None
    assert config.wal.s3.secret_access_key.get_secret_value() == "hunter2"


def test_listening_for_other_machines_without_keys_is_refused(problems: Problems, load: Load) -> None:
    text = "receive:\n  http: {listen: '0.0.0.0:4318'}\n  grpc: {listen: '0.0.0.0:4317'}\n"
    assert problems(text) == (
        "frazil.yaml:2:18: receive.http.listen: is reachable from other machines (and receive.grpc.listen),"
        " but no API key is configured (given '0.0.0.0:4318')\n"
        "    add a key (`frazil keys new --tenant NAME`), listen on 127.0.0.1, "
        "or set receive.allow_anonymous: true"
    )
    assert load(text + "  allow_anonymous: true\n").receive.allow_anonymous
    assert load(text + f"auth: {{keys: [{{name: a, tenant: t, hash: '{HASH}'}}]}}").auth.keys[0].tenant == "t"
    assert (
        load("receive: {grpc: {enabled: false, listen: '0.0.0.0:4317'}}").receive.grpc.listen
        == "0.0.0.0:4317"
    )


def test_two_keys_cannot_share_a_name_or_a_hash(problems: Problems) -> None:
    key = f"{{name: a, tenant: t, hash: '{HASH}'}}"
    other = f"{{name: b, tenant: t, hash: '{HASH}'}}"
    assert "has two keys with the same name" in problems(f"auth: {{keys: [{key}, {key}]}}")
    assert "has two keys with the same hash" in problems(f"auth: {{keys: [{key}, {other}]}}")


def test_a_key_has_the_roles_read_and_write_by_default(load: Load, problems: Problems) -> None:
    key = f"name: a, tenant: t, hash: '{HASH}'"
    assert load(f"auth: {{keys: [{{{key}}}]}}").auth.keys[0].roles == {"read", "write"}
    assert load(f"auth: {{keys: [{{{key}, roles: [admin]}}]}}").auth.keys[0].roles == {"admin"}
    assert "auth.keys[0].roles" in problems(f"auth: {{keys: [{{{key}, roles: [root]}}]}}")
    assert "must be one of read, write, admin" in problems(f"auth: {{keys: [{{{key}, roles: [root]}}]}}")
    assert "must not be empty" in problems(f"auth: {{keys: [{{{key}, roles: []}}]}}")


def test_path_style_follows_the_endpoint_unless_set(load: Load) -> None:
    def path_style(more: str) -> bool:
        s3 = load(f"wal: {{s3: {{bucket: b{more}}}}}").wal.s3
        assert s3 is not None
        return s3.uses_path_style

    assert not path_style("")
    assert path_style(", endpoint: 'https://s3.example.com'")
    assert not path_style(", endpoint: 'https://s3.example.com', path_style: false")


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("0.0.0.0:2", "http://127.0.0.1:2"),
        ("[::]:3", "http://[::1]:3"),
    ],
)
def test_the_receiver_can_be_reached_at_its_url(load: Load, listen: str, url: str) -> None:
    receive = f"receive: {{allow_anonymous: true, grpc: {{listen: '{listen}'}}}}"
    assert load(receive).receive.url("grpc") == url
    assert load(receive).receive.url("http") == "http://127.0.0.1:4318"


def test_promoted_columns_are_named_after_their_attribute(load: Load) -> None:
    assert PromotedColumn(attribute="HTTP.Route-x").name == "http_route_x"
    assert PromotedColumn(attribute="2fa").name == "_2fa"
    assert PromotedColumn(attribute="a", column="b").name == "b"
    assert PromotedColumn(attribute=("new.name", "old.name")).name == "new_name"


def test_a_promoted_column_may_have_a_list_of_attributes_the_first_is_tried_first(load: Load) -> None:
    text = "tables: {promoted: [{attribute: [new.name, old.name], type: int}, {attribute: one}]}"
    listed, single = promoted(load(text))
    assert listed == Promoted("new.name", "record", "int", "new_name", older=("old.name",))
    assert single == Promoted("one", name="one")


def test_a_promoted_column_has_a_bloom_filter_only_if_asked_for(load: Load) -> None:
    first, second = "{attribute: a, bloom: true}", "{attribute: b, type: int, bloom: true}"
    text = f"tables: {{promoted: [{first}, {second}, {{attribute: c}}]}}"
    assert [item.bloom for item in promoted(load(text))] == [True, True, False]


def test_a_section_with_everything_commented_out_means_defaults(load: Load) -> None:
    assert load("log:\nauth:\nreceive:\n  http:\n  tls:\n") == Config()


def test_the_configuration_cannot_be_changed_and_can_be_sent_to_workers() -> None:
    config = Config()
    with pytest.raises(ValueError, match="frozen"):
        config.log.level = "debug"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_example_is_complete_and_loads_as_the_defaults(load: Load) -> None:
    text = example_yaml()
    assert load(text) == Config()
    for key in ("in_flight_bytes_max: 128MiB", "#tls:", "#keys:", "#promoted:", "free_bytes_min: 512MiB"):
        assert key in text


def test_the_example_loads_with_every_example_switched_on(load: Load) -> None:
    text = re.sub(r"(?m)^(\s*)#(?! \S)", r"\1", example_yaml())
    config = load(text)
    assert config.receive.tls is not None
    assert config.wal.s3 is not None
    assert config.auth.keys
    assert config.tables.promoted[0].name == "http_route"
    assert "shop" in config.tenants.rate_limits.by_tenant


def test_every_field_says_what_it_does() -> None:
    models = [getattr(frazil.config, name) for name in frazil.config.__all__]
    for model in models:
        for name, field in getattr(model, "model_fields", {}).items():
            assert field.description, f"{model.__name__}.{name}"
            assert field.description.endswith("."), f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("1b", 1), ("2KB", 2000), ("1.5MiB", 3 << 19), ("1 GiB", 1 << 30), (7, 7)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 8 << 20, 3 << 30, 1000])
def test_a_formatted_size_reads_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize("value", ["1.5", "", "MiB", "-1MiB", 1.5, True, None, []])
def test_invalid_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("2s", 2), ("5m", 300), ("1h", 3600), (3, 3), ("0.5", 0.5)]
)
def test_durations(text: str | int, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("a-b.c:65535", ("a-b.c", 65535))],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_listen(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:65536", "a:-1", "::1:80", "[x]:1", "a b:1", "a:1x", "a:١"]
)
def test_invalid_listen_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        split_listen(text)


def test_loopback_is_recognised() -> None:
    assert all(map(is_loopback, ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:1"]))
    assert not any(map(is_loopback, ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"]))


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a" * 65, "ä", "a\n", "a b"])
def test_invalid_tenant_ids(text: str) -> None:
    with pytest.raises(ValueError, match="tenant id"):
        tenant_id(text)


def test_tenant_ids() -> None:
    assert tenant_id("Team_a.b-1") == "Team_a.b-1"
    assert tenant_id("a" * 64) == "a" * 64


def test_attributes_that_are_counted_are_few_and_distinct(load: Load, problems: Problems) -> None:
    default = load().derive
    assert default.cardinality_attributes == ()
    assert load("derive: {cardinality_attributes: []}").derive.cardinality_attributes == ()
    chosen = load("derive: {cardinality_attributes: [user.id, k8s.pod.name]}").derive
    assert chosen.cardinality_attributes == ("user.id", "k8s.pod.name")
    assert [each.is_off("metric_cardinality") for each in (default, chosen)] == [True, False]
    named = "derive: {cardinality_attributes: %s}"
    assert "contains an attribute twice" in problems(named % "[a, b, a]")
    assert "must be an attribute name or a list of names" in problems(named % "[a, '']")
    assert "must be an attribute name or a list of names" in problems(named % "3")
    many = "[" + ", ".join(f"a{number}" for number in range(21)) + "]"
    assert "contains 21 attributes" in problems(named % many)
    assert "at most 20 are counted" in problems(named % many)
