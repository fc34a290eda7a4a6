"""How fast rounds are: beside a floor, a bare PyTorch loop and other libraries.

Needs nothing but what fairlead itself needs; figures are drawn where matplotlib is installed.

    python -m fairlead.bench W1 W2 --device cuda
"""

from fairlead.bench.run import bench
from fairlead.bench.table import markdown
from fairlead.bench.workloads import WORKLOADS, Workload
from fairlead.bench.write import write

__all__ = ["WORKLOADS", "Workload", "bench", "markdown", "write"]
