"""The pipeline in words: from the status that the API really gives."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from frazil.dashboard import pipeline_view
from frazil.tables import derived_specs
from tests.support.status_roles import down
from tests.unit.status.test_watcher import Said, Story, api, deriving, pipeline, receiver


def said(story: Story) -> dict[str, pipeline_view.Card]:
    return {card.title: card for card in pipeline_view.cards(story.status)}


def test_every_stage_says_what_it_does_and_what_is_wrong() -> None:
    story = (
        Story()
        .look(receiver(0), pipeline(), api())
        .look(receiver(1000, busy=10), pipeline(30, 500, failing=1), api(20))
    )
    cards = said(story)
    assert list(cards) == ["Receive", "Write-ahead log", "Land", "Tables", "Maintain", "Query"]
    assert (cards["Receive"].headline, dict(cards["Receive"].lines)["bytes"]) == ("100/s", "10 kB/s")
    assert cards["Receive"].problem == "refused requests: busy 1/s"
    assert (cards["Write-ahead log"].headline, dict(cards["Write-ahead log"].lines)["oldest"]) == (
        "1.5 kB",
        "30 s",
    )
    assert (cards["Land"].headline, dict(cards["Land"].lines)["lag"]) == ("50/s", "30 s")
    assert dict(cards["Tables"].lines)["files"] == "9"
    assert cards["Maintain"].problem == "failed: compact on logs"
    assert cards["Query"].headline == "2/s"


def test_small_files_beside_nothing_to_merge_are_explained() -> None:
    status = Story().look(receiver(0), pipeline(), api()).look(receiver(1000), pipeline(30), api()).status
    for table in status["stages"]["lake"]["tables"].values():
        table["small_files"] = 7
    waiting = status["stages"]["maintain"]["waiting"]
    for bytes_, note in ((0, "14 small files: merged when"), (5_000_000, None)):
        for table in waiting.values():
            table["bytes"] = bytes_
        card = {card.title: card for card in pipeline_view.cards(status)}["Maintain"]
        assert card.unit == "to merge now"
        assert (card.note is None) == (note is None)
        assert (card.note or "").startswith(note or "")


def test_the_ledger_is_shown_with_a_row_per_table() -> None:
    figures = {"streams": 1, "durable": 7402258, "landed": 7402000, "removed": 0, "waiting": 258}
    rows = pipeline_view.ledger_rows({"tables": {"logs": figures, "spans": figures}})
    assert [row["table"] for row in rows] == ["logs", "spans"]
    assert (rows[0]["durable"], rows[0]["waiting"], rows[0]["set_aside"]) == (7402258, 258, None)
    assert list(rows[0]) == list(pipeline_view.LEDGER_COLUMNS)


def test_what_failed_once_and_went_well_since_is_a_number_and_no_trouble() -> None:
    story = Story().look(pipeline()).look(pipeline(failing=1)).look(pipeline())
    card = said(story)["Maintain"]
    assert (dict(card.lines)["failed"], card.problem) == ("1", None)


def test_what_nobody_knows_is_a_dash_and_no_error() -> None:
    story = Story().look(down("receiver"), down("pipeline"), down("api"))
    for card in said(story).values():
        assert card.headline
        assert all(value for _, value in card.lines)
    assert said(story)["Receive"].headline == "–"
    assert pipeline_view.table_rows(story.status) == []


def test_lines_of_the_history_are_points_by_signal() -> None:
    story = Story().look(receiver(0), pipeline()).look(receiver(1000), pipeline(30))
    points = pipeline_view.history_rows(story.status, "received_records_per_second")
    assert [(point["of"], point["value"]) for point in points if point["value"]] == [("logs", 100.0)]
    assert {point["of"] for point in pipeline_view.history_rows(story.status, "backlog_bytes")} == {"all"}
    assert pipeline_view.history_rows({**story.status, "history": None}, "backlog_bytes") == []


def test_a_table_is_shown_as_all_tenants_see_it_where_that_is_known() -> None:
    own = {"files": 1, "bytes": 2e6, "small_files": 1, "files_per_moment": 1.0, "whole": None}
    whole = {**own, "files": 10, "bytes": 2e7, "snapshots": 3}
    tables = [
        {"name": "logs", "rows": 5, "tail_rows": 1, "health": {**own, "whole": whole}},
        {"name": "spans", "rows": 7, "tail_rows": 0, "health": own},
        {"name": "events", "rows": None, "health": None},
    ]
    rows = {row["table"]: row for row in pipeline_view.table_rows({"tables": tables})}
    assert (rows["logs"]["files"], rows["logs"]["bytes"], rows["logs"]["snapshots"]) == (10, 20.0, 3)
    assert (rows["spans"]["files"], rows["spans"]["bytes"], rows["spans"]["snapshots"]) == (1, 2.0, None)
    assert set(rows) == {"logs", "spans"}


@pytest.mark.parametrize(
    ("role", "state", "lag"),
    [
        (deriving(age=12), "up to date", "12 s"),
        (deriving(age=600), "behind", "10 min 00 s"),
        (deriving(committed=0), "no data yet", "0 ms"),
        (deriving(days=1), "1 past day left", "0 ms"),
        (deriving(days=12), "12 past days left", "0 ms"),
        (deriving(failing=1), "failing", "0 ms"),
        (deriving(off=1, age=600), "off", "–"),
        (pipeline(), "unknown", "–"),
    ],
)
def test_each_derived_table_is_shown_with_its_state_and_lag(role: Said, state: str, lag: str) -> None:
    rows = {row["table"]: row for row in pipeline_view.derived_rows(Story().look(role).status)}
    assert (rows["log_rollups"]["state"], rows["log_rollups"]["lag"]) == (state, lag)
    assert rows["log_rollups"]["source"] == "logs"
    assert list(rows["log_rollups"]) == list(pipeline_view.DERIVED_COLUMNS)


def test_derived_tables_that_fail_or_are_behind_are_named_with_the_reason() -> None:
    def problems(role: Said) -> list[str]:
        return pipeline_view.derive_problems(Story().look(role).status)

    assert problems(deriving(failing=1, problem="no such column")) == [
        "log_rollups is not derived: no such column"
    ]
    assert problems(deriving(failing=1)) == ["log_rollups is not derived: see the log of the pipeline"]
    assert problems(deriving(age=600)) == ["log_rollups is 10 min 00 s behind its source"]
    assert problems(deriving(days=5, age=600)) == []
    assert problems(deriving()) == []
    assert problems(deriving("series", limited=1)) == [
        "new rows of series are not written today: 1 tenant is at `derive.series_per_day_max`"
    ]
    assert problems(deriving("service_edges", unmatched=850_000)) == [
        "a tenant has 85 % of `derive.unmatched_spans_per_day_max` in service_edges today; beyond it, spans "
        "do not wait for the other side of their call"
    ]


def drawn(role: Said) -> AppTest:
    """What the Pipeline page shows of derived tables."""

    def script() -> None:
        import streamlit as st

        from frazil.dashboard.pages import pipeline as page

        page._derived(st.session_state["status"])

    app = AppTest.from_function(script, default_timeout=60)
    app.session_state["status"] = Story().look(role).status
    app.run()
    assert not app.exception
    return app


def test_the_page_shows_derived_tables_with_state_and_names_those_that_are_behind() -> None:
    app = drawn(deriving(age=600))
    (shown,) = app.dataframe
    states = dict(zip(shown.value["table"], shown.value["state"], strict=True))
    assert states["log_rollups"] == "behind"
    assert [warning.value for warning in app.warning] == [r"log\_rollups is 10 min 00 s behind its source"]


def test_the_page_says_that_derivation_is_off_in_place_of_a_table() -> None:
    text = "\n".join(deriving(spec.name, off=1).text for spec in derived_specs())
    app = drawn(Said("pipeline", text))
    assert not app.dataframe
    assert "Derivation is off" in app.caption[0].value
