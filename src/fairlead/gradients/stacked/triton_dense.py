"""A Triton kernel for dense layers in which every client has its own weights.

With small batches such layers are limited by memory: every weight is read, or its gradient written, for few samples. So all that
happens to a layer's samples is done while they are at hand: biases and ReLU on the way forward, ReLU's mask and the sums
of the biases' gradients on the way back. Libraries also choose slow kernels where rows do not begin at aligned
addresses, as in layers of 62, 300 or 10 outputs.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from torch import Tensor

from fairlead.gradients.stacked.lang import jit, launch, tl
from fairlead.gradients.stacked.tiles import Tile, cdiv, product_tile


@jit
def _multiply(
    a, b, c, bias, seen, total, a_client, a_row, a_col, b_client, b_row, b_col, bias_client,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, SEEN: tl.constexpr, TOTAL: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c (S, M, N) = a (S, M, K) · b (S, K, N), plus BIAS (S, N), and zero where negative with RELU. SEEN: where the
    numbers there, which lie like a, are zero or negative, a is zero. TOTAL: also the sums (S, M) of a's rows."""
    client = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (N + BN - 1) // BN
    n = (tl.program_id(0) % across) * BN + tl.arange(0, BN)[None, :]
    m = (tl.program_id(0) // across) * BM + tl.arange(0, BM)[:, None]
    a += client * a_client
    b += client * b_client
    seen += client * a_client
    acc = tl.zeros((BM, BN), tl.float32)
    rows = tl.zeros((BM, 1), tl.float32)
    for k0 in tl.range(0, K, BK):
        of_a = k0 + tl.arange(0, BK)[None, :]
        of_b = k0 + tl.arange(0, BK)[:, None]
        inside = (m < M) & (of_a < K)
        left = tl.load(a + m * a_row + of_a * a_col, mask=inside, other=0.0)
        if SEEN:
            shown = tl.load(seen + m * a_row + of_a * a_col, mask=inside, other=0.0)
            left = tl.where(shown <= 0, 0.0, left)
        if TOTAL:
            rows += tl.sum(left.to(tl.float32), 1, keep_dims=True)
        right = tl.load(b + of_b * b_row + n * b_col, mask=(of_b < K) & (n < N), other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * bias_client + n, mask=n < N, other=0.0).to(tl.float32)
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    to = c + client * (M * N) + m * N + n
    tl.store(to, acc.to(c.dtype.element_ty), mask=(m < M) & (n < N))
    if TOTAL:
        first = (m < M) & (tl.program_id(0) % across == 0)
        tl.store(total + client * M + m, rows.to(total.dtype.element_ty), mask=first)


def multiply(
    a: Tensor, b: Tensor, precision: str = "ieee", tile: Tile | None = None, *,
    bias: Tensor | None = None, relu: bool = False, seen: Tensor | None = None, total: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """a (S, M, K) · b (S, K, N), as (S, M, N). total: where the sums of a's rows go."""
    (S, M, K), N = a.shape, b.shape[2]
    assert seen is None or seen.stride() == a.stride()
    assert bias is None or bias.stride(1) == 1 or N == 1
    c = a.new_empty(S, M, N)
    t = tile or product_tile(M, N, K, a.dtype, precision, turned=b.stride(1) == 1)
    given = (a if one is None else one for one in (bias, seen, total))
    launch(
        _multiply, (cdiv(M, t.m) * cdiv(N, t.n), S),
        a, b, c, *given, *a.stride(), *b.stride(), 0 if bias is None else bias.stride(0), M, N, K,
        bias is not None, relu, seen is not None, total is not None, precision, t.m, t.n, t.k,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return c
