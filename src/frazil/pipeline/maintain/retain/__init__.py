"""Retention: rows go when they are as old as the rules say. Start reading at `retain`; `rules` plans a
round.
"""
