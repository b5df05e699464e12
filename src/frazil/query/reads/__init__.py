"""What a log search, a count, a trace search, a trace, a metric's rate or a service's figures mean, as SQL.

Pure: typed requests in, `Statement`s out; tables in, results out. The API runs the statements in the query
service, the dashboard sends them to the API, tests run them in DuckDB. Imports no engine, no storage and no
web framework. `records` is a good place to start.
"""
