"""SQL on the tables, for queries and maintenance: the DuckDB sandbox, checks of parsed statements, and the
choice of data files by a query's conditions. Depends on no service and no stage. Start reading at
`statement`.
"""
