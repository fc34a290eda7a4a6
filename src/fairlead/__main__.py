"""`python -m fairlead` is the command line."""

from fairlead.cli import app

if __name__ == "__main__":
    app()
