"""Log searches, counts, trace searches, traces, metrics over time and figures by service, as SQL.

Pure: typed requests in, `Statement`s out; tables in, results out. The API runs the statements in the query
service, the dashboard sends them to the API, tests run them in DuckDB. Imports no engine, no storage and no
web framework. `records` is a good place to start.
"""
