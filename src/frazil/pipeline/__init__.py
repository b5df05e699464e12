"""Spark: the session, and what runs on it.

Never acks anything and keeps no state of its own: how far a table has come is recorded in the table.
"""
