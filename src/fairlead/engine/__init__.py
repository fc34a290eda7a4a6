"""Engines: what runs a method. They know tasks and the protocol, and no method."""
