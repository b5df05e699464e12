"""Health of tables, and recovery of a damaged or lost catalog."""
