"""Rounds on several ranks over a shaped network, beside what the cost model predicts.

    python benchmarks/network.py [--ranks 2,3] [--quick]       (as root, on Linux)

Every rank is a process in a network namespace of its own. A program in between takes the packets of
all of them, holds each for the latency and hands it on at the bandwidth. The model is given the
latency and bandwidth, the time of a round in one process, and a message's overhead as measured
between two such processes without added latency. Nothing outside the namespaces is touched.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from fairlead.study.cluster_cost import Network, round_cost

MTU = 9000
NAME = "fairlead"


class Wire(threading.Thread):
    """Carries packets between the namespaces."""

    def __init__(self, ranks: int) -> None:
        super().__init__(daemon=True)
        self.latency, self.bandwidth = 0.0, 1e12
        self.files = [_tun(k) for k in range(ranks)]
        self.over = False

    def run(self) -> None:
        try:
            self.carry()
        except OSError:  # the namespaces are gone
            self.over = True

    def carry(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        free, count = [0.0] * len(self.files), 0
        while not self.over:
            pause = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else 0.1
            ready, _, _ = select.select(self.files, [], [], min(pause, 0.1))
            for file in ready:
                packet = os.read(file, 1 << 16)
                if packet[0] >> 4 != 4:
                    continue
                to = packet[19] - 1  # the last byte of the address
                if 0 <= to < len(self.files):
                    now = time.perf_counter()
                    free[to] = max(now, free[to]) + len(packet) / self.bandwidth
                    heapq.heappush(waiting, (free[to] + self.latency, count, to, packet))
                    count += 1
            while waiting and waiting[0][0] <= time.perf_counter():
                _, _, to, packet = heapq.heappop(waiting)
                os.write(self.files[to], packet)


def _tun(k: int) -> int:
    """A device whose packets this program reads and writes, in a namespace of its own."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, 0x400454CA, struct.pack("16sH", f"{NAME}{k}".encode(), 0x1001))
    space = f"{NAME}{k}"
    _ip("netns", "add", space)
    _ip("link", "set", f"{NAME}{k}", "netns", space)
    inside = ("-n", space)
    _ip(*inside, "addr", "add", f"10.99.0.{k + 1}/24", "dev", f"{NAME}{k}")
    _ip(*inside, "link", "set", f"{NAME}{k}", "mtu", str(MTU), "up")
    _ip(*inside, "link", "set", "lo", "up")
    return file


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def clear(ranks: int) -> None:
    for k in range(ranks):
        subprocess.run(["ip", "netns", "del", f"{NAME}{k}"], capture_output=True)


WORK = """
import json, sys, time
import numpy as np, torch, fairlead as fl
dim, cohort, rounds = json.loads(sys.argv[1])
if not dim:  # small all-reduces alone
    from fairlead.engine.processes.ranks import TorchRanks
    ranks = TorchRanks(torch.device("cpu"), None, 60)
    for k in range(rounds + 20):
        begin = time.perf_counter() if k == 20 else begin if k else 0
        ranks.most([0, 0, 0])
    print(json.dumps({"seconds": (time.perf_counter() - begin) / rounds}))
    sys.exit()
x = torch.randn(cohort * 40, dim // 10)
y = torch.randint(10, (len(x),))
parts = np.arange(len(x)).reshape(cohort, 40)
task = fl.Task(fl.models.mlp(dim // 10, 10), "cross_entropy", (x, y), parts)
def train(rounds):
    return fl.train(task, fl.FedAvg(lr=0.01), rounds=rounds, steps=2, batch_size=20,
                    engine=fl.Distributed("vmap"), eval_every=rounds)
train(30)  # the first rounds measure and record
run = train(rounds)
print(json.dumps({"seconds": run.seconds / rounds}))
"""


def measured(ranks: int, dim: int, cohort: int, rounds: int) -> float:
    """Seconds a round, by processes in their namespaces."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as script:
        script.write(WORK)
    env = {
        **os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": "29400",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = []
    for k in range(ranks):
        own = {**env, "RANK": str(k), "GLOO_SOCKET_IFNAME": f"{NAME}{k}"}
        words = ["ip", "netns", "exec", f"{NAME}{k}", sys.executable, script.name]
        if ranks == 1:
            words, own = words[4:], {**os.environ, "OMP_NUM_THREADS": "1"}
        words.append(json.dumps([dim, cohort, rounds]))
        started.append(subprocess.Popen(words, env=own, stdout=subprocess.PIPE, text=True))
    outputs = [p.communicate(timeout=600)[0] for p in started]
    os.unlink(script.name)
    return json.loads(outputs[0].strip().splitlines()[-1])["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    counts = [int(n) for n in given.ranks.split(",")]
    ctypes.CDLL("libc.so.6").prctl(29, 1)  # PR_SET_TIMERSLACK: wake up on time
    clear(max(counts))
    wire = Wire(max(counts))
    wire.start()
    shapes = [(50_000, 12)] if given.quick else [(50_000, 12), (500_000, 12)]
    nets = [(1e-3, 125e6), (5e-3, 125e6), (20e-3, 12.5e6)]
    if not given.quick:
        nets += [(1e-3, 12.5e6), (10e-3, 125e6), (40e-3, 25e6)]
    print("| ranks | d | latency, ms | Mbit/s | predicted, ms | measured, ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    try:
        overhead = {}
        for ranks in counts:  # no added latency: what messages cost by themselves
            wire.latency, wire.bandwidth = 0.0, 1e12
            overhead[ranks] = measured(ranks, 0, 0, 300) / (2 * (ranks - 1))
        for dim, cohort in shapes:
            each = measured(1, dim, cohort, 20) / cohort
            for ranks in counts:
                for latency, bandwidth in nets:
                    wire.latency, wire.bandwidth = latency, bandwidth
                    net = Network(latency, bandwidth, overhead[ranks])
                    cost = round_cost(
                        net, ranks=ranks, cohort=cohort, dim=dim + 10,
                        client_seconds=each * max(1.0, ranks / (os.cpu_count() or 1)),
                    )  # fmt: skip
                    found = measured(ranks, dim, cohort, 20)
                    ratios.append(found / cost.total)
                    print(f"| {ranks} | {dim:,} | {1e3 * latency:g} | {bandwidth * 8e-6:g} | "
                          f"{1e3 * cost.total:.1f} | {1e3 * found:.1f} | {ratios[-1]:.2f} |", flush=True)  # fmt: skip
    finally:
        wire.over = True
        clear(max(counts))
    print(f"\nmeasured over predicted: {min(ratios):.2f} to {max(ratios):.2f}, "
          f"median {np.median(ratios):.2f}; overhead a message {overhead}")  # fmt: skip


if __name__ == "__main__":
    main()
