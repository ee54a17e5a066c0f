"""What the router is made of: replicas, the choice between them, health, joining."""
