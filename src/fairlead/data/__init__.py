"""Data: sources, splits across clients, batches."""
