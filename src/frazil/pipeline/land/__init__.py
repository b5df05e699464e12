"""Landing: moves durable data from the write-ahead log into the tables, exactly once. Start reading at
`lander`.

The only checkpoint is the position in the table. Rows are never compared to find out whether they are new.
"""
