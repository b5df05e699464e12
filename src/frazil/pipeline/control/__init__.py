"""Commands that run in the active pipeline, on its Spark session: a command's own Spark takes half a minute
to start. Start reading at `command`; `server` authenticates and runs them.
"""
