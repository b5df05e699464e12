"""Maintenance of the tables: compaction, snapshot expiry, retention, erasure, tags. Start reading at
`maintainer`; `rewrite` commits rewritten files.
"""
