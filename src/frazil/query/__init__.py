"""Runs SQL over landed rows and over rows that are still only in the WAL. Never writes to a table or to the
WAL.

`plan` chooses the data files and WAL rows that a query needs. DuckDB runs the query in a worker process that
can be killed and that can open only those files. Start reading at `service.QueryService.execute`.
"""
