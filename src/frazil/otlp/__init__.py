"""OTLP bytes to Arrow rows and back. Pure: no I/O, no Spark, no clock.

`decode` turns requests into rows of a table in `frazil.tables`; `encode` turns rows back into a request.
"""
