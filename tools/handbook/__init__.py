"""Makes the page and the picture of every method, `docs/methods/*.md`, and the index in `docs/methods.md`.

    make pages      # or, for one of them: PYTHONPATH=src:tools python -m handbook scaffold

Words are in `entries/`; code, costs, bounds and numbers are computed, and a test compares the stored pages with new ones.
"""
