"""What a shard leaves for people and programs: Markdown, JUnit XML and JSON."""
