"""Derivation: keeps the derived tables in line with their sources. Start at `deriver`.

A derived table's own position is the only record of what it contains; nothing else is remembered between
rounds.
"""
