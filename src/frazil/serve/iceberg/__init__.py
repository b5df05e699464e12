"""A read-only Iceberg REST catalog, and an S3 endpoint for the files of a local warehouse."""
