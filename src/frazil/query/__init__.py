"""Answers SQL over what has landed and what arrived a moment ago. Never writes to a table or to the WAL.

`plan` decides which files and which rows of the WAL a question needs; DuckDB answers it in a process that can
be killed and that can open nothing else.
"""
