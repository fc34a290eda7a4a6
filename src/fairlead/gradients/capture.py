"""Capturing a gradient as a flat list of operators.

`vmap` and `grad` interpret a model's Python anew at every call, which costs more than the
arithmetic of a small model. The operators they issue are captured once per shape and replayed.
Only models made of torch's own layers are captured, and only those without buffers or dropout:
what they do depends on nothing but their inputs. Operators whose result is not needed (the loss
itself), that always give the same, or that return their input are removed; on a CPU some are replaced by
faster ones (see `fairlead.gradients.cpu_kernels`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fairlead.gradients.apart import kept_apart
from fairlead.gradients.cpu_kernels import for_a_cpu
from fairlead.gradients.form import Form
from fairlead.gradients.products import multiply_by_onednn
from fairlead.gradients.segments import SHORT


def traced(
    run: Callable[..., tuple[Any, Tensor]],
    arguments: tuple[Tensor | None, ...],
    form: Form,
    segmented: bool = False,
    products: bool = False,
) -> Callable[..., tuple[Any, Tensor]] | None:
    """What was captured of `run` for arguments of these shapes, in a form; None stays None.
    segmented: results are flat, one per segment; with `products`, those that are matrix products are given
    as their two sides. None if it draws random numbers."""
    given = [place for place, t in enumerate(arguments) if t is not None]

    def gradient(*tensors: Tensor) -> Any:
        full: list[Any] = [None] * len(arguments)
        for place, t in zip(given, tensors, strict=True):
            full[place] = t
        return run(*full)[0]

    example = [arguments[place] for place in given]
    found = captured(gradient, example)
    if found is None:  # a capture would draw the same again
        return None
    graph: Any = simplified(found, example)
    cpu = all(t is not None and t.device.type == "cpu" for t in example)
    if form.kernels and cpu:
        for_a_cpu(graph, form.onednn)
    if segmented:
        cut_into_segments(graph, products)
    if form.onednn and cpu:
        multiply_by_onednn(graph)

    def replay(*full: Tensor | None) -> tuple[Any, Tensor]:
        buffers = full[2]
        assert buffers is not None
        return graph.forward(*(full[place] for place in given)), buffers

    return replay


def listed(run: Callable[..., Any], given: tuple[Any, ...]) -> Callable[..., Any]:
    """The operators of a function of tensors of these shapes. RuntimeError if it waits for values or draws."""
    found = captured(run, list(given))
    if found is None:
        raise RuntimeError("it draws random numbers")
    return simplified(found, list(given)).forward


def captured(run: Callable[..., Any], example: Sequence[Tensor | None]) -> GraphModule | None:
    """The operators of a function of tensors of these shapes; None if it draws random numbers."""
    found = make_fx(run)(*example)
    if any(_draws(node) for node in found.graph.nodes):
        return None
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


def compiled(run: Any, example: Sequence[Tensor], tuned: bool = False) -> Callable[..., Any]:
    """A function of tensors, or its operators, compiled; one that draws random numbers stays as it is. tuned:
    several kernels are tried for every matrix product."""
    module = run if isinstance(run, GraphModule) else captured(run, example)
    if module is None:
        return run
    kept_apart(module)
    options: Any = {"max_autotune_gemm": True} if tuned else None
    made = torch.compile(module, dynamic=False, options=options)
    with warnings.catch_warnings():  # what the compiler finds is for those who write compilers
        warnings.simplefilter("ignore")
        made(*example)
    return made


def simplified(module: GraphModule, example: list[Any]) -> GraphModule:
    """The same results to the bit with fewer operators; a list that changes tensors in place stays
    as it is."""
    if any(_changes_in_place(node) for node in module.graph.nodes):
        return module
    values = _Values(module)
    values.run(*example)
    constant: set[Node] = set()
    for node in list(module.graph.nodes):
        inputs = [n for n in node.all_input_nodes if n not in constant]
        if node.op == "call_function" and (node.target in ONES or (node.args and not inputs)):
            constant.add(node)
        elif node.target in SAME or (node.target, *node.args[1:]) in UNITS:
            before, after = values.kept[node.args[0]], values.kept[node]
            if (before.shape, before.dtype) == (after.shape, after.dtype):
                node.replace_all_uses_with(node.args[0])
            elif _keeps_dims(node.args[0]):
                x, dims = node.args[0].args[:2]
                if after.shape == before.squeeze(tuple(dims)).shape:
                    node.target, node.args = _aten.sum.dim_IntList, (x, dims)
    for number, node in enumerate(constant):
        if any(user not in constant for user in node.users):
            module.register_buffer(f"constant_{number}", values.kept[node])
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant_{number}"))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def cut_into_segments(module: GraphModule, products: bool) -> None:
    """Return one flat result per segment. With `products`, matrix products are returned as pairs of their
    sides, unless a side is a view of the first argument, the point: it may change before they are
    multiplied. Other results that are views of it are copied for the same reason."""
    graph = module.graph
    point = next(iter(graph.nodes))
    for node in list(graph.nodes):
        before: Any = node.args[0] if node.target is _aten.t.default else node
        if before is not node and before.target is _aten.t.default:
            node.replace_all_uses_with(before.args[0])
    output = graph.output_node()
    results = cast(list[Node], output.args[0])
    found: list[Any] = []
    with graph.inserting_before(output):
        for short, some in itertools.groupby(results, lambda n: _shape(n).numel() < SHORT):
            if not short:
                found += [_segment(node, point, products) for node in some]
                continue
            flat = [_flat(node) for node in some]
            alone = len(flat) == 1 and not _is_view(flat[0], point)
            found.append(flat[0] if alone else graph.call_function(_aten.cat.default, (flat,)))
    output.args = (found,)
    graph.eliminate_dead_code()
    module.recompile()


def _segment(node: Any, point: Node, products: bool) -> Any:
    """A flat result, or the two sides of a product."""
    whole = node.args[0] if node.target is _aten.view.default else node
    node = whole if whole.target is _aten.mm.default else node
    apart = products and node.target is _aten.mm.default
    if apart and not any(_is_view(n, point) for n in node.args):
        return node.args
    flat = node.graph.call_function(_aten.reshape.default, (node, [-1]))
    return node.graph.call_function(_aten.clone.default, (flat,)) if _is_view(node, point) else flat


def _flat(node: Node) -> Node:
    if len(_shape(node)) == 1:
        return node
    return node.graph.call_function(_aten.reshape.default, (node, [-1]))


def _shape(node: Node) -> torch.Size:
    meta: Any = node.meta["tensor_meta"]
    return meta.shape


def _keeps_dims(node: Node) -> bool:
    """Whether it is a sum that keeps the dimensions it is taken over."""
    return node.target is _aten.sum.dim_IntList and node.args[2:] == (True,)


def _is_view(node: Any, of: Node) -> bool:
    """Whether two values may share their memory."""
    if node is of or node.op == "placeholder":
        return node is of
    schema = getattr(node.target, "_schema", None)
    view = schema is None or any(a.alias_info is not None for a in schema.arguments)
    return view and any(_is_view(n, of) for n in node.all_input_nodes)


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _changes_in_place(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


class _Values(Interpreter):
    """What every operator gave on an example."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.kept: dict[Any, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.kept[n] = super().run_node(n)
        return self.kept[n]


_aten = torch.ops.aten
ONES = {_aten.ones_like.default, _aten.zeros_like.default}  # of a shape that does not change
SAME = {_aten.view.default, _aten.expand.default, _aten.detach.default, _aten.alias.default}
UNITS = {(_aten.mul.Tensor, 1.0), (_aten.mul.Scalar, 1.0), (_aten.pow.Tensor_Scalar, 1.0)}
