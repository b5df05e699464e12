"""The Iceberg tables: their files, the catalog that knows them, and the one way to commit.

Never changes a table but by compare-and-swap, and leaves no local file behind that is not fsynced.
"""
