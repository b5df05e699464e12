"""Conditions on rows, for retention and erasure: parses and checks them, and finds the matching rows of data
files. Start reading at `parse`.
"""
