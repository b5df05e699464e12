"""Choose files to merge, move, expire or delete. `pipeline.maintain` runs the work."""
