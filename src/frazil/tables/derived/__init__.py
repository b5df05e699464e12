"""The derived tables: each module declares one table and the pure function that computes its rows from rows of
its source. Start at `rules`, then `log_rollups`.
"""
