"""Erasure: rows of a tenant go from the tables, their history and the write-ahead log, with a proof. Start
reading at `erase`.
"""
