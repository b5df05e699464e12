"""Code that several tests share: data builders, programs that fault tests run, stand-ins for other processes.

Components that tests start for real (Kafka, S3, Postgres, a browser) are in `tests/components`.
"""
