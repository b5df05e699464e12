"""The only code that changes Iceberg tables. Start at `commit.Committer`."""
