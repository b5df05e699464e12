"""Real components for tests and benchmarks: S3 servers, a faulty proxy, a Collector, failing disks.

Each runs as a process of its own on 127.0.0.1, is handed out only when it answers, and ends with the `with`
block that started it. Nothing in here imports frazil.
"""
