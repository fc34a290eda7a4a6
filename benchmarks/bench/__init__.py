"""How fast rounds are: beside a floor, a bare PyTorch loop and other libraries.

Needs nothing but what fairlead itself needs; figures are drawn where matplotlib is installed.

    PYTHONPATH=src:benchmarks python -m bench W1 W2 --device cuda
"""

from bench.run import bench
from bench.table import markdown
from bench.workloads import WORKLOADS, Workload
from bench.write import write

__all__ = ["WORKLOADS", "Workload", "bench", "markdown", "write"]
