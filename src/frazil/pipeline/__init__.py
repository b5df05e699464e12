"""The pipeline role: lands data in the Iceberg tables and maintains them, on Spark. Start reading at `run`.

It keeps no state of its own: each table records its landing position.
"""
