"""Keeping the tables: merging files, expiring snapshots, retention, erasure, tags. Rows leave a table by
retention and erasure alone. Start reading at `maintainer`; `rewrite` commits files in the place of others.
"""
