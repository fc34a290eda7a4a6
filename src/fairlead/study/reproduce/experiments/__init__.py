"""The recipes; every module adds its own."""
