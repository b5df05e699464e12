"""OTLP bytes to Arrow rows and back. Pure: no I/O, no Spark, no clock.

`decode` turns requests into a table of one of the specs in `frazil.tables`; `encode` turns rows back into a
request.
"""
