"""Landing: what was made durable gets into the tables, exactly once.

Never keeps a checkpoint beside the table's own, and never decides by content whether a row is new.
"""
