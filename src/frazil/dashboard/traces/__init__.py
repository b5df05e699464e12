"""The Traces page: search, the span tree, the critical path, and one span."""
