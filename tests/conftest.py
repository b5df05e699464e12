"""Fixtures for all tests. Components that cannot be had fail in CI and skip elsewhere."""

from __future__ import annotations

pytest_plugins = ["tests.components.fixtures"]
