"""Conditions of operators on rows: parsed, checked to depend on one row alone, and matched with data files.
Start reading at `parse`.
"""
