"""The external merge sort: files of one partition in, fewer files with the same rows out, in bounded memory.
Runs in Spark's workers. Start reading at `merge`.
"""
