"""Retention: removes rows when they reach the age of a rule. Start reading at `retain`; `rules` plans a
round.
"""
