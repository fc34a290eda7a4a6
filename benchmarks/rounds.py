"""The same as `fairlead bench`, which times FedAvg rounds beside a floor, a bare PyTorch loop and other libraries.

python benchmarks/rounds.py [W1 W2 …] [--peers] [--scaling] [--repeats 5] [--device cpu]
"""

from bench.__main__ import main

if __name__ == "__main__":
    main()
