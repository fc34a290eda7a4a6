"""A Triton kernel for products of one small matrix per client with another.

Dense layers of many clients with small batches are limited by memory: every weight is read, or its gradient written, for
few samples. Libraries choose slow kernels for them where rows do not begin at aligned addresses, as in layers of 62, 300
or 10 outputs.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from torch import Tensor

from fairlead.gradients.stacked.lang import jit, launch, tl
from fairlead.gradients.stacked.tiles import Tile, cdiv, product_tile


@jit
def _multiply(
    a, b, c, a_client, a_row, a_col, b_client, b_row, b_col,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c (S, M, N) = a (S, M, K) · b (S, K, N), of any strides."""
    client = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (N + BN - 1) // BN
    n = (tl.program_id(0) % across) * BN + tl.arange(0, BN)[None, :]
    m = (tl.program_id(0) // across) * BM + tl.arange(0, BM)[:, None]
    a += client * a_client
    b += client * b_client
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.range(0, K, BK):
        of_a = k0 + tl.arange(0, BK)[None, :]
        of_b = k0 + tl.arange(0, BK)[:, None]
        left = tl.load(a + m * a_row + of_a * a_col, mask=(m < M) & (of_a < K), other=0.0)
        right = tl.load(b + of_b * b_row + n * b_col, mask=(of_b < K) & (n < N), other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    to = c + client * (M * N) + m * N + n
    tl.store(to, acc.to(c.dtype.element_ty), mask=(m < M) & (n < N))


def multiply(a: Tensor, b: Tensor, precision: str = "ieee", tile: Tile | None = None) -> Tensor:
    """a (S, M, K) · b (S, K, N), as (S, M, N)."""
    (S, M, K), N = a.shape, b.shape[2]
    c = a.new_empty(S, M, N)
    t = tile or product_tile(M, N, K, a.dtype, precision, turned=b.stride(1) == 1)
    launch(
        _multiply, (cdiv(M, t.m) * cdiv(N, t.n), S),
        a, b, c, *a.stride(), *b.stride(), M, N, K, precision, t.m, t.n, t.k,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return c
