"""Programs that tests start: where they find what they import."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PATHS = os.pathsep.join(
    [str(TESTS), str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
)
