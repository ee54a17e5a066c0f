"""What an event means, which tests it selects, and which of them the changed paths spare."""
