"""SQL on the tables, for queries and maintenance: DuckDB's sandbox, parsed statements, and which files can
hold rows that a condition asks for. Knows no service and no stage. Start reading at `statement`.
"""
