"""All commits to Iceberg tables. Start at `commit.Committer`."""
