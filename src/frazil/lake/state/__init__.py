"""Judge the condition of a table: health, gauges, corruption, and recovery of a lost catalog."""
