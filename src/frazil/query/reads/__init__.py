"""Searches of logs, spans and traces, counts, metrics over time and statistics by service, as SQL.

Pure functions: they turn typed requests into `Statement`s, and result tables into typed results. The API runs
the statements in the query service, the dashboard sends them to the API, tests run them in DuckDB. Imports no
engine, no storage and no web framework. Start reading at `records`.
"""
