"""Keeping the tables: merging files, expiring snapshots, retention, erasure, tags."""
