"""What is known of versions and models and can only be looked up: names by Ray version, peaks."""
