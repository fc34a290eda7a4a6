"""Data: sources, splits among clients, batches."""
