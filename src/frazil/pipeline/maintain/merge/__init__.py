"""External merge sort in bounded memory: writes the rows of many data files of one partition to fewer files.
Runs in Spark's workers. Start reading at `merge`.
"""
