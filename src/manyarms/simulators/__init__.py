"""What runs inside a worker: one file a simulator."""
