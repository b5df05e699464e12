"""The Iceberg tables: their files, their catalog, and all commits to them. Start at `commits/commit`.

Changes tables only by compare-and-swap, and syncs every local file that it writes.
"""
