"""The ledger names every kind of damage, and says nothing while all is well."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from frazil.config import Config
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.commits.staging import stage_append
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import LANDED
from frazil.ledger import Ledger, balance
from frazil.ledger import main as show_ledger
from frazil.pipeline.land.set_aside import set_aside
from frazil.pipeline.land.source import UnreadableSegment
from frazil.position import (
    KafkaPosition,
    LandingPosition,
    Left,
    PartitionPosition,
    StreamPosition,
    TopicPosition,
    WalPosition,
    landing_position,
)
from frazil.wal.names import SegmentName
from tests.support.fault.change_process import CHANGES, erase
from tests.support.fault.land_process import LandProcess, Pipeline
from tests.support.fault.land_wal import (
    ROWS,
    STREAMS,
    Content,
    assert_landed,
    damage,
    table_content,
    write_segments,
    write_tombstone,
)

# PyIceberg's own writer knows no bloom filters, and says so whenever a test rewrites rows by hand.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")

ONE, TWO, THREE = STREAMS


@pytest.fixture
def config(tmp_path: Path) -> Config:
    land = {"wal_grace_seconds": 0, "stream_idle_seconds": 10}
    return Config.model_validate({"data_dir": tmp_path, "land": land})


@pytest.fixture
def pipeline(config: Config) -> Iterator[Pipeline]:
    made = Pipeline(config)
    with contextlib.closing(made.catalog):
        yield made


@pytest.fixture
def landed(tmp_path: Path, pipeline: Pipeline) -> Pipeline:
    """Two streams of which the first segments have landed, in two commits, and one segment waits in each."""
    write_segments(tmp_path, ONE, [0, 1])
    pipeline.land()
    write_segments(tmp_path, ONE, [2])
    write_segments(tmp_path, TWO, [0])
    pipeline.land()
    write_segments(tmp_path, ONE, [3])
    write_segments(tmp_path, TWO, [1])
    return pipeline


def keep_up(pipeline: Pipeline) -> None:
    pipeline.lander.drop_streams(pipeline.upkeep.round("logs", pipeline.lander.checkpoint().table.metadata))


def table_of(pipeline: Pipeline) -> Table:
    return pipeline.catalog.load_table("otel.logs")


def problems(pipeline: Pipeline) -> list[str]:
    return balance(pipeline.config).problems


def the_problem(pipeline: Pipeline) -> str:
    (problem,) = problems(pipeline)
    return problem


def tamper(pipeline: Pipeline, change: Callable[[LandingPosition], LandingPosition]) -> None:
    checkpoint = checkpoint_of(table_of(pipeline))
    position = change(landing_position(checkpoint.position))
    Committer(pipeline.catalog, deadline_seconds=60).append(checkpoint, [], position.to_text())


def at(stream: str, **changes: Any) -> Callable[[LandingPosition], LandingPosition]:
    return of_wal(lambda wal: wal.with_streams({stream: replace(wal.streams[stream], **changes)}))


def of_wal(change: Callable[[WalPosition], WalPosition]) -> Callable[[LandingPosition], LandingPosition]:
    return lambda position: replace(position, wal=change(position.wal))


def path_of(stream: str, sequence: int) -> str:
    return SegmentName("logs", stream, sequence).path


def test_all_is_well_from_before_the_first_landing_to_after_the_last_clean_up(
    tmp_path: Path, config: Config
) -> None:
    assert balance(config) == Ledger()
    assert not config.catalog_file.exists()
    content = write_segments(tmp_path, ONE, [0, 1])
    (line,) = balance(config).lines
    assert (line.durable, line.waiting, line.landed, line.problems) == (2 * ROWS, 2 * ROWS, 0, [])
    pipeline = Pipeline(config)
    with contextlib.closing(pipeline.catalog):
        assert balance(config).problems == []  # a catalog without tables
        pipeline.land()
        (line,) = balance(config).lines
        assert (line.durable, line.waiting, line.landed, line.segments) == (2 * ROWS, 0, 2 * ROWS, 2)
        write_tombstone(tmp_path, ONE, 2)
        assert balance(config).problems == []
        pipeline.land()
        keep_up(pipeline)
        (line,) = balance(config).lines
        assert (line.landed, line.segments, line.problems) == (2 * ROWS, 0, [])
        content += write_segments(tmp_path, TWO, [0])
        pipeline.land()
        (line,) = balance(config).lines  # the first one has left the position
        assert (line.stream, line.landed) == (TWO, ROWS)
        assert_landed(tmp_path, content)


def test_what_has_landed_and_what_waits_is_counted_by_stream(landed: Pipeline) -> None:
    ledger = balance(landed.config)
    assert ledger.problems == []
    counted = [(line.stream, line.durable, line.landed, line.waiting) for line in ledger.lines]
    assert counted == [(ONE, 4 * ROWS, 3 * ROWS, ROWS), (TWO, 2 * ROWS, ROWS, ROWS)]


def test_what_is_set_aside_is_counted_and_is_no_problem(tmp_path: Path, pipeline: Pipeline) -> None:
    """Also where it is the last that was landed, or the last of its stream, and when it is cleaned up."""
    content = write_segments(tmp_path, ONE, [0])
    for sequence in (1, 2):
        write_segments(tmp_path, ONE, [sequence])
        damage(tmp_path, ONE, sequence)
        pipeline.land()
        (line,) = balance(pipeline.config).lines
        assert (line.set_aside, line.landed, line.problems) == (sequence, ROWS, [])
    content += write_segments(tmp_path, ONE, [3])
    assert problems(pipeline) == []  # the count of the stream's rows has jumped
    pipeline.land()
    keep_up(pipeline)
    assert_landed(tmp_path, content)


def test_rows_that_were_deleted_are_named_by_their_segment(landed: Pipeline) -> None:
    table_of(landed).delete(f"_segment == '{ONE}/1'")
    first, total = problems(landed)
    assert first == f"{path_of(ONE, 1)}: {ROWS} of {ROWS} rows are missing in logs"
    assert f"{ONE}: {ROWS} rows are missing" in total


def test_rows_that_were_deleted_are_counted_when_their_segment_is_cleaned_up(landed: Pipeline) -> None:
    keep_up(landed)
    table_of(landed).delete(f"_segment == '{ONE}/1'")
    assert f"{ONE}: {ROWS} rows are missing" in the_problem(landed)


def test_rows_that_are_gone_from_a_stream_that_has_ended_are_counted(
    tmp_path: Path, landed: Pipeline
) -> None:
    for _ in range(4):  # closed, landed, cleaned up, forgotten
        landed.land()
        keep_up(landed)
        landed.clock.seconds += 10
    write_segments(tmp_path, THREE, [0])
    landed.land()
    assert problems(landed) == []
    assert {line.stream for line in balance(landed.config).lines} == {THREE}
    table_of(landed).delete(f"_segment == '{ONE}/1'")
    assert the_problem(landed) == f"logs: {ROWS} rows of streams that have ended are missing"


def remove(
    pipeline: Pipeline, prefix: str, count: Callable[[Mapping[str, int]], Mapping[str, int]] = dict
) -> None:
    """As retention and erasure do. `count` says what the position counts of it."""
    committer = Committer(pipeline.catalog, deadline_seconds=60)
    erase(committer, table_of(pipeline), prefix, count=count)


def none_of(gone: Mapping[str, int]) -> Mapping[str, int]:
    return {}


def one_less(gone: Mapping[str, int]) -> Mapping[str, int]:
    return {source: rows - 1 for source, rows in gone.items()}


def one_more(gone: Mapping[str, int]) -> Mapping[str, int]:
    return {source: rows + 1 for source, rows in gone.items()}


@pytest.mark.parametrize("cleaned_up", [False, True])
def test_rows_that_were_removed_on_purpose_are_counted_and_are_no_problem(
    tmp_path: Path, landed: Pipeline, cleaned_up: bool
) -> None:
    """While their segments are still in the log, and after."""
    if cleaned_up:
        keep_up(landed)
    remove(landed, f"{ONE}/1")
    assert problems(landed) == []
    counted = [(line.landed, line.removed, line.durable) for line in balance(landed.config).lines]
    assert counted == [(3 * ROWS, ROWS, 4 * ROWS), (ROWS, 0, 2 * ROWS)]
    landed.land()  # from a position that counts them
    assert problems(landed) == []
    remove(landed, ONE)
    assert problems(landed) == []
    assert [line.removed for line in balance(landed.config).lines] == [4 * ROWS, 0]


@pytest.mark.parametrize("cleaned_up", [False, True])
@pytest.mark.parametrize(
    ("count", "words"),
    [
        (none_of, f"{ONE}: {ROWS} rows are missing: the position counts {3 * ROWS} landed, the table"),
        (
            one_less,
            f"{ONE}: 1 rows are missing: the position counts {3 * ROWS} landed and {ROWS - 1} removed",
        ),
        (one_more, f"{ONE}: 1 rows are duplicated"),
    ],
)
def test_rows_that_were_removed_and_counted_wrongly_are_a_problem(
    landed: Pipeline, count: Any, words: str, cleaned_up: bool
) -> None:
    if cleaned_up:
        keep_up(landed)
    remove(landed, f"{ONE}/1", count)
    found = problems(landed)
    assert any(words in problem for problem in found)
    named = any(path_of(ONE, 1) in problem and "are missing" in problem for problem in found)
    assert named is (not cleaned_up and count is not one_more)


def test_rows_that_are_missing_beside_those_that_were_removed_are_a_problem(landed: Pipeline) -> None:
    remove(landed, f"{ONE}/1")
    table_of(landed).delete(f"_segment == '{ONE}/2'")
    found = problems(landed)
    assert any(f"{ONE}: {ROWS} rows are missing" in problem for problem in found)
    assert any(path_of(ONE, 2) in problem for problem in found)


def test_rows_that_landed_twice_are_a_problem_however_many_were_removed(landed: Pipeline) -> None:
    table = table_of(landed)
    table.append(table.scan(row_filter=f"_segment == '{ONE}/0'").to_arrow())
    remove(landed, f"{ONE}/1")
    found = problems(landed)
    assert any(path_of(ONE, 0) in problem and "duplicated" in problem for problem in found)
    assert any(f"{ONE}: {ROWS} rows are duplicated" in problem for problem in found)


@pytest.mark.parametrize("when", ["before they leave", "after they left"])
def test_rows_that_were_removed_from_streams_that_have_ended_are_no_problem(
    tmp_path: Path, landed: Pipeline, when: str
) -> None:
    if when == "before they leave":
        remove(landed, f"{ONE}/1")
    for _ in range(4):  # closed, landed, cleaned up, forgotten
        landed.land()
        keep_up(landed)
        landed.clock.seconds += 10
    write_segments(tmp_path, THREE, [0])
    landed.land()
    if when == "after they left":
        remove(landed, f"{ONE}/1")
    position = landing_position(checkpoint_of(table_of(landed)).position)
    assert position.wal.left == Left(2, 6 * ROWS, 6 * ROWS, removed=ROWS)
    assert problems(landed) == []
    remove(landed, f"{ONE}/2", none_of)
    assert the_problem(landed) == f"logs: {ROWS} rows of streams that have ended are missing"


def from_kafka(pipeline: Pipeline, *, set_aside: int = 0) -> None:
    """Two messages of a partition with a row each, and some that were set aside."""
    table = table_of(pipeline)
    rows = table.scan(row_filter=f"_segment == '{TWO}/0'").to_arrow().slice(0, 1)
    column = rows.column_names.index("_segment")
    for offset in range(2):
        table.append(rows.set_column(column, rows.schema.field(column), [[f"logs/0/{offset}"]]))
    part = PartitionPosition(2 + set_aside, 2, 2 + set_aside, set_aside)
    topics = KafkaPosition({"logs": TopicPosition("id", {0: part})})
    tamper(pipeline, lambda position: replace(position, kafka=topics))


def test_rows_that_were_removed_from_a_partition_are_counted(landed: Pipeline) -> None:
    from_kafka(landed)
    remove(landed, "logs/0/1")
    (line,) = [line for line in balance(landed.config).lines if line.stream == "logs/0"]
    assert (line.landed, line.removed, line.problems) == (2, 1, [])
    remove(landed, "logs/0/0", none_of)
    assert "logs, logs/0: 1 rows are missing" in the_problem(landed)


def set_aside_rows(pipeline: Pipeline, *sources: str) -> None:
    items = [UnreadableSegment(source, "made no sense", 1, payload=b"x") for source in sources]
    set_aside(pipeline.config, pipeline.catalog, "logs", items, None)


def forget_set_aside(pipeline: Pipeline, *, counted: bool = True) -> None:
    """All of it, as retention does after a while."""
    table = pipeline.catalog.load_table("otel.set_aside")
    gone = Counter(table.scan(selected_fields=("source",)).to_arrow()["source"].to_pylist())
    Committer(pipeline.catalog, deadline_seconds=60).overwrite(
        table,
        [each.file for each in live_files(table)],
        [],
        lambda text: landing_position(text).with_removed(gone if counted else {}).to_text(),
    )


def test_messages_that_are_not_kept_aside_any_more_are_no_problem(landed: Pipeline) -> None:
    from_kafka(landed, set_aside=2)
    assert "2 messages were set aside, but the table set_aside has 0" in the_problem(landed)
    set_aside_rows(landed, "logs/0/2", "logs/0/3")
    assert problems(landed) == []
    forget_set_aside(landed)
    assert problems(landed) == []
    tamper(landed, lambda position: replace(position, kafka=with_set_aside(position.kafka, 3)))
    assert "3 messages were set aside, but the table set_aside has 0" in the_problem(landed)


def with_set_aside(position: KafkaPosition, messages: int) -> KafkaPosition:
    part = replace(position.topics["logs"].partitions[0], set_aside=messages)
    return KafkaPosition({"logs": TopicPosition("id", {0: part})})


def test_messages_that_are_gone_from_aside_and_were_not_counted_are_a_problem(landed: Pipeline) -> None:
    from_kafka(landed, set_aside=2)
    set_aside_rows(landed, "logs/0/2", "logs/0/3")
    forget_set_aside(landed, counted=False)
    assert "2 messages were set aside, but the table set_aside has 0" in the_problem(landed)


def test_segments_that_are_not_kept_aside_any_more_are_no_problem(tmp_path: Path, pipeline: Pipeline) -> None:
    """Also where they still lie in the log, and behind the last that was landed."""
    write_segments(tmp_path, ONE, [0, 1])
    damage(tmp_path, ONE, 1)
    pipeline.land()
    write_segments(tmp_path, ONE, [2])
    assert problems(pipeline) == []
    forget_set_aside(pipeline)
    assert problems(pipeline) == []
    damage(tmp_path, ONE, 2)
    assert f"{path_of(ONE, 2)} is corrupt" in the_problem(pipeline)


def test_a_data_file_that_goes_while_the_ledger_reads_is_looked_for_again(
    landed: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was merged meanwhile, and the snapshot that named it has expired."""
    module = sys.modules["frazil.ledger.landed"]
    real, committer = module._rows_by_source, Committer(landed.catalog, deadline_seconds=60)
    table = table_of(landed)

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(module, "_rows_by_source", real)
        CHANGES["replace"](committer, table)
        for each in live_files(table):
            Path(each.file.file_path).unlink()
        return real(*args)

    monkeypatch.setattr(module, "_rows_by_source", slow)
    assert problems(landed) == []


def test_a_data_file_that_is_gone_for_good_is_named(landed: Pipeline) -> None:
    file = live_files(table_of(landed))[0].file
    Path(file.file_path).unlink()
    assert (
        the_problem(landed)
        == f"otel.logs: {file.file_path} is missing, but the table references it; restore it from a backup"
    )


def test_a_data_file_that_cannot_be_read_is_named_and_the_other_tables_are_shown(landed: Pipeline) -> None:
    path = Path(live_files(table_of(landed))[0].file.file_path)
    path.write_bytes(path.read_bytes()[:-100])
    waiting = landed.config.wal_dir / SegmentName("spans", ONE, 0).path
    waiting.parent.mkdir(parents=True)
    waiting.write_bytes(b"spans")
    ledger = balance(landed.config)
    (problem,) = ledger.table_problems
    assert problem.startswith(f"otel.logs: {path} cannot be read (")
    assert problem.endswith("but the table references it; restore it from a backup")
    assert "\n" not in problem
    assert [(line.table, line.stream) for line in ledger.lines] == [("spans", ONE)]


def test_removed_rows_are_shown_to_people_and_machines(
    landed: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(landed, f"{ONE}/1")
    capsys.readouterr()
    assert show_ledger(landed.config, True) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [line["removed"] for line in lines] == [ROWS, 0]
    assert show_ledger(landed.config, False) == 0
    assert "removed" in capsys.readouterr().out


def test_a_data_file_that_is_in_the_table_twice_is_named(landed: Pipeline) -> None:
    table = table_of(landed)
    file = next(iter(table.scan(row_filter=f"_segment == '{TWO}/0'").plan_files())).file
    staged = stage_append(table, [file], {})
    updates = [update for update in staged.updates if getattr(update, "ref_name", "main") == "main"]
    landed.catalog.commit_table(table, staged.requirements, tuple(updates))
    found = problems(landed)
    assert any(f"data file {file.file_path} is in the table twice" in problem for problem in found)
    assert any(path_of(TWO, 0) in problem and "duplicated" in problem for problem in found)


@pytest.mark.parametrize("cleaned_up", [False, True])
def test_a_segment_that_was_landed_twice_is_named(landed: Pipeline, cleaned_up: bool) -> None:
    if cleaned_up:
        keep_up(landed)
    table = table_of(landed)
    table.append(table.scan(row_filter=f"_segment == '{TWO}/0'").to_arrow())
    found = problems(landed)
    assert any(f"{TWO}: {ROWS} rows are duplicated" in problem for problem in found)
    assert any(path_of(TWO, 0) in problem for problem in found) is not cleaned_up


def test_rows_that_come_from_nowhere_are_counted(landed: Pipeline) -> None:
    table = table_of(landed)
    rows = table.scan(row_filter=f"_segment == '{TWO}/0'").to_arrow()
    at_column = rows.column_names.index("_segment")
    for source in ("by hand", f"{THREE}/0"):
        names = rows.slice(0, 1).set_column(at_column, rows.schema.field(at_column), [[source]])
        table.append(names)
    assert the_problem(landed) == "logs: 2 rows in the table belong to no stream"


TAMPERED: dict[str, tuple[Callable[[LandingPosition], LandingPosition], str]] = {
    "more rows": (at(ONE, rows=99), f"{ONE}: {99 - 3 * ROWS} rows are missing"),
    "fewer rows": (at(ONE, rows=1), f"{ONE}: {3 * ROWS - 1} rows are duplicated"),
    "a step back": (
        at(ONE, sequence=2),
        f"{ONE}/2: {ROWS} rows are in logs before it has landed",
    ),
    "a step ahead": (at(ONE, sequence=4), f"{path_of(ONE, 3)}: {ROWS} of {ROWS} rows are missing"),
    "a leap ahead": (at(ONE, sequence=9), f"{path_of(ONE, 3)}: {ROWS} of {ROWS} rows are missing"),
    "closed": (at(ONE, closed=True), f"{path_of(ONE, 3)} is after its stream's end"),
    "forgotten": (
        of_wal(lambda wal: WalPosition({TWO: wal.streams[TWO]})),
        f"{ONE}/0: {ROWS} rows are in logs before it has landed",
    ),
    "invented": (
        of_wal(lambda wal: wal.with_streams({THREE: StreamPosition(1, 5, 5)})),
        f"{THREE}: 5 rows are missing",
    ),
    "others left": (
        of_wal(lambda wal: replace(wal, left=Left(1, 7, 7))),
        "7 rows of streams that have ended are missing",
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_position_that_was_tampered_with_is_found_out(landed: Pipeline, how: str) -> None:
    change, words = TAMPERED[how]
    tamper(landed, change)
    assert any(words in problem for problem in problems(landed)), problems(landed)


@pytest.mark.parametrize("how", ["more rows", "fewer rows", "a step back", "invented", "others left"])
def test_a_position_that_was_tampered_with_is_found_out_also_after_clean_up(
    tmp_path: Path, landed: Pipeline, how: str
) -> None:
    for stream in (ONE, TWO):
        write_tombstone(tmp_path, stream, 4 if stream == ONE else 2)
    tamper(landed, at(ONE))  # a commit that changes nothing
    keep_up(landed)
    for path in (tmp_path / "wal" / "logs").rglob("*.parquet"):
        path.unlink()  # nothing that waits could give it away
    change, words = TAMPERED[how]
    tamper(landed, change)
    assert any(words in problem for problem in problems(landed)), problems(landed)


def test_a_stream_that_left_the_position_and_was_not_counted_is_found_out(landed: Pipeline) -> None:
    keep_up(landed)
    tamper(landed, of_wal(lambda wal: WalPosition({ONE: wal.streams[ONE]})))
    assert any(f"{ROWS} rows" in problem for problem in problems(landed))


def test_a_segment_that_is_missing_before_others_is_named(tmp_path: Path, landed: Pipeline) -> None:
    write_segments(tmp_path, ONE, [4])
    (tmp_path / "wal" / path_of(ONE, 3)).unlink()
    assert the_problem(landed) == f"{path_of(ONE, 4)}: sequence 3 is missing before it"


def test_a_segment_that_waits_and_is_corrupt_is_named(tmp_path: Path, landed: Pipeline) -> None:
    damage(tmp_path, ONE, 3)
    assert f"{path_of(ONE, 3)} is corrupt" in the_problem(landed)


def test_a_count_of_rows_that_jumps_is_named(tmp_path: Path, landed: Pipeline) -> None:
    tamper(landed, at(ONE, durable_rows=1))
    assert the_problem(landed) == f"{path_of(ONE, 3)}: the stream's row count does not continue from 1"


def test_a_table_that_was_rolled_back_or_lost_its_tag_is_named_and_the_others_are_checked(
    landed: Pipeline,
) -> None:
    table = table_of(landed)
    table.manage_snapshots().remove_tag(LANDED).commit()
    assert "has no tag" in the_problem(landed)


def test_many_problems_of_a_stream_are_counted_and_some_named(tmp_path: Path, pipeline: Pipeline) -> None:
    write_segments(tmp_path, ONE, range(24))
    pipeline.land()
    table_of(pipeline).delete(f"_segment != '{ONE}/0'")
    found = problems(pipeline)
    assert len(found) == 21
    assert f"{23 * ROWS} rows are missing" in found[-1]


def test_the_command_says_what_it_found_and_its_exit_status_too(
    landed: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_ledger(landed.config, False) == 0
    assert show_ledger(landed.config, True) == 0
    table_of(landed).delete(f"_segment == '{ONE}/1'")
    capsys.readouterr()
    assert show_ledger(landed.config, True) == 1
    assert '"ok": false' in capsys.readouterr().out
    assert show_ledger(landed.config, False) == 1
    assert "rows are missing" in capsys.readouterr().out.replace("\n", " ")


def test_what_lands_and_is_cleaned_up_while_the_ledger_reads_is_no_problem(
    tmp_path: Path, landed: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the table, which may take long, and that of the log."""
    module = sys.modules["frazil.ledger.balance"]  # the package has a function of that name
    real = module.read_landed

    def slow(*args: Any) -> Any:
        found = real(*args)
        if args[-1] == "logs":
            landed.land()
            keep_up(landed)
            write_segments(tmp_path, ONE, [4])
        return found

    monkeypatch.setattr(module, "read_landed", slow)
    assert problems(landed) == []


@pytest.mark.slow
def test_the_ledger_balances_all_the_time_while_another_process_lands(tmp_path: Path) -> None:
    config = Config.model_validate({"data_dir": tmp_path})
    content: Content = Content()
    with LandProcess(tmp_path / "land.log", environment={}) as process:
        for sequence in range(2):
            content += write_segments(tmp_path, ONE, [sequence])
            content += write_segments(tmp_path, TWO, [sequence])
            process.begin_landing(tmp_path, wal_grace_seconds=600)
            looks = 0
            while not process.has_ended() or not looks:
                assert balance(config).problems == []
                looks += 1
            assert process.ended().returncode == 0
    assert table_content(tmp_path) == content
