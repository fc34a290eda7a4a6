"""A further process of `fairlead reproduce --jobs`: python -m fairlead.study.reproduce.helper ORDER."""

from __future__ import annotations

import json
import os
import signal
import sys

from fairlead.engine.processes.environment import end_with_parent
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.study.reproduce.catalog import recipe
from fairlead.study.reproduce.claims import Work, keep_to
from fairlead.study.reproduce.runner import Kept, do_missing


def main(order: str) -> int:
    """Do cases until none is left; the exit status."""
    given = json.loads(order)
    end_with_parent(signal.SIGTERM)
    if os.getppid() != given["parent"]:  # it ended before
        return 1
    keep_to(given["cores"])
    work = Work.read(given["work"])
    try:
        do_missing(Kept(recipe(work.recipe), work), Progress(False, 0, ""))
    except KeyboardInterrupt:
        return 130
    except FairleadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
