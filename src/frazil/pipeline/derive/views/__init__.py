"""Views: derived tables that users declare in Spark SQL. `shape` checks the SQL without Spark, `declare`
finds out the types with Spark and makes the table's spec, `task` computes the rows. Start with `shape`.
"""
