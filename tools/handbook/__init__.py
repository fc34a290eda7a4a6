"""Makes the page and the picture of every method, `docs/methods/*.md`, and the index in `docs/methods.md`.

    PYTHONPATH=src:tools python -m handbook

Words are in `entries/`; code, costs, bounds and numbers are computed, and a test compares the stored pages with new ones.
"""
