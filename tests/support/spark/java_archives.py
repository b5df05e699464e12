"""`python -m tests.support.spark.java_archives`: makes the archives that JVMs of tests map their classes
from. For each set of jars that tests use often, Spark lands logs once and ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.config import Config
from frazil.pipeline import jvm
from frazil.pipeline.jars import EVERY, KAFKA, download_missing, jar_path, packages
from frazil.pipeline.session import spark_session, stop
from tests.components.s3 import S3Server, moto_server
from tests.support.spark.land_lake import Sent, Stream, opened
from tests.support.spark.land_process import SMALL_SPARK
from tests.support.spark.quick_java import ARCHIVE_INTO, build_archive, use_quick_java

WRITE_SECONDS_MAX = 600.0


def main() -> None:
    download_missing(EVERY, {})
    local = {"wal": {"local": {"free_bytes_min": 0}}, "spark": SMALL_SPARK}
    print(build_archive("local", lambda into: _train(into, local)))
    # No broker is needed to load the classes of Spark; those of Kafka's client are few.
    jars = (*packages(Config()), *KAFKA)
    class_path = {"spark.driver.extraClassPath": os.pathsep.join(str(jar_path(package)) for package in jars)}
    kafka = local | {"spark": SMALL_SPARK | {"settings": class_path}}
    build_archive("kafka", lambda into: _train(into, kafka))
    build_archive("s3", _train_on_s3)


def _train_on_s3(into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="frazil-java-") as folder, moto_server(Path(folder)) as s3:
        _train(into, _on(s3))


def _train(into: Path, settings: dict[str, Any]) -> None:
    print("archiving Java classes for quick starts of Spark (once)", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="frazil-java-") as folder,
        mock.patch.dict(os.environ, {ARCHIVE_INTO: str(into)}),
        mock.patch.object(jvm, "END_SECONDS_MAX", WRITE_SECONDS_MAX),
    ):
        use_quick_java()
        _land(Path(folder), settings)


def _on(s3: S3Server) -> dict[str, Any]:
    bucket = s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    section = {"endpoint": s3.endpoint, "allow_http": True, **keys}
    return {
        "spark": SMALL_SPARK,
        "wal": {"type": "s3", "s3": {"bucket": bucket, **section}},
        "lake": {"warehouse": f"s3://{bucket}/warehouse", "s3": section},
    }


def _land(folder: Path, settings: dict[str, Any]) -> None:
    with opened({"data_dir": folder, **settings}) as lake:
        session = spark_session(lake.config)
        try:
            stream = Stream(lake.store, "logs")
            for text in ("one", "two"):
                stream.write([Sent(_logs(text))])
                lake.land("logs")
            assert lake.by_spark("logs").num_rows == 2
        finally:
            stop(session)


def _logs(text: str) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano = 1_790_000_000_123_456_789
    record.body.string_value = text
    return request


if __name__ == "__main__":
    main()
