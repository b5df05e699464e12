"""Choose files to merge, move, expire or delete. Pure decisions over table metadata; `pipeline.maintain` runs them."""
