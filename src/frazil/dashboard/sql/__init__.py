"""The SQL page: examples, the result table, and charts of a result."""
