"""The Logs page: search, rows, one record, and the live tail."""
