"""How the cores of a standalone cluster are shared."""

from __future__ import annotations

import pytest

from frazil.pipeline.cluster import COMMAND_PART, PIPELINE_PART, share_of


@pytest.mark.parametrize(
    ("cores", "pipeline", "command"), [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 2, 1), (8, 4, 2), (64, 32, 16)]
)
def test_a_pipeline_gets_half_of_the_cores_and_a_command_a_quarter(
    cores: int, pipeline: int, command: int
) -> None:
    assert (share_of(cores, PIPELINE_PART, {}), share_of(cores, COMMAND_PART, {})) == (pipeline, command)


def test_a_limit_is_never_smaller_than_what_one_executor_needs() -> None:
    assert share_of(8, COMMAND_PART, {"spark.executor.cores": "4"}) == 4
