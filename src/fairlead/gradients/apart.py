"""Gradients that stay apart by parameter in a captured program.

A gradient is joined from its parameters' parts, used in the step, and the new point is cut into parameters again. Element by
element, the step does the same on the parts: then a compiler makes one kernel of it per large part, which reads the point and
the part and writes the new point and its short copy. Joined first, they pass through memory once more, in kernels that
have to find out for every element which part it is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

LARGE = 1 << 19
"""Elements from which a part is by itself; smaller neighbours are joined."""
_aten = torch.ops.aten
ELEMENTWISE = {_aten._to_copy.default, _aten.clone.default}
"""Elementwise operators that are not tagged as such."""
SAME = {_aten.expand.default, _aten.view.default, _aten.detach.default, _aten.alias.default}
"""Operators that return their input if its shape stays the same."""


@dataclass(frozen=True)
class Part:
    """Columns of a matrix."""

    begin: int
    end: int
    node: Node


def kept_apart(module: GraphModule) -> None:
    """Compute from the parts of joined matrices what can be computed so, column by column; the results stay the same.
    A program that changes numbers in place stays as it is."""
    if any(changes_numbers(node) for node in module.graph.nodes):
        return
    found = _Apart(module)
    for node in list(module.graph.nodes):
        with module.graph.inserting_before(node):
            found.visit(node)
    for node in reversed(found.parts):
        with module.graph.inserting_before(node):
            found.join(node)
    module.graph.eliminate_dead_code()
    module.recompile()


class _Apart:
    """What is known by its parts."""

    def __init__(self, module: GraphModule) -> None:
        self.graph = module.graph
        self.parts: dict[Node, list[Part]] = {}

    def visit(self, node: Node) -> None:
        """Find out whether a value can be computed by parts, and do so."""
        target, before = node.target, node.args[0] if node.args else None
        if target is _aten.cat.default:
            self._joined(node)
        elif target is _aten.mm.default and node.args[1] in self.parts:
            mine = [(p, self._call(node, (before, p.node))) for p in self.parts[node.args[1]]]
            self.parts[node] = [Part(p.begin, p.end, made) for p, made in mine]
        elif not isinstance(before, Node) or not any(a in self.parts for a in node.all_input_nodes):
            return
        elif target in SAME and before in self.parts and _shape(node) == _shape(before):
            self.parts[node] = self.parts[before]
        elif target is _aten.split_with_sizes.default and before in self.parts:
            self._split(node, before)
        elif _elementwise(node):
            self._by_parts(node)

    def _joined(self, node: Node) -> None:
        """Group the inputs of a concatenation of columns: a large one is a part, small neighbours are one."""
        inputs: Any = node.args[0]
        shapes = [_shape(one) for one in inputs]
        if any(len(s) != 2 for s in shapes) or (*node.args, 0)[1] not in (1, -1):
            return
        groups: list[list[Node]] = []
        small = False
        for one, shape in zip(inputs, shapes, strict=True):
            if shape[0] * shape[1] >= LARGE:
                groups.append([one])
                small = False
            elif small:
                groups[-1].append(one)
            else:
                groups.append([one])
                small = True
        if len(groups) == 1:
            return
        at, parts = 0, []
        for group in groups:
            end = at + sum(_shape(one)[1] for one in group)
            one = group[0] if len(group) == 1 else self._call(node, (group, 1))
            parts.append(Part(at, end, one))
            at = end
        self.parts[node] = parts

    def _by_parts(self, node: Node) -> None:
        """Compute an elementwise operator on the parts, if its other inputs can be cut in the same way."""
        like = next(a for a in node.all_input_nodes if a in self.parts)
        shape = _shape(node)
        others = [a for a in node.all_input_nodes if a not in self.parts]
        if shape != _shape(like) or not all(_fits(_shape(a), shape[1]) for a in others):
            return
        made: list[Part] = []
        for part in self.parts[like]:

            def cut(a: Node, part: Part = part) -> Node:
                alone = _shape(a)[-1:] in ((), (1,))
                return a if alone else self.columns(a, part.begin, part.end)

            args, kwargs = map_arg(node.args, cut), map_arg(node.kwargs, cut)
            made.append(Part(part.begin, part.end, self._call(node, args, kwargs)))
        self.parts[node] = made

    def _split(self, node: Node, before: Node) -> None:
        """Cut parameters out of the parts that they lie in."""
        sizes: Any = node.args[1]
        if (*node.args, 0)[2] not in (1, -1):
            return
        at = 0
        places = [(at := at + size) - size for size in sizes]
        for user in list(node.users):
            which: Any = user.args[1]
            begin, end = places[which], places[which] + sizes[which]
            if any(p.begin <= begin and end <= p.end for p in self.parts[before]):
                with self.graph.inserting_before(user):
                    mine = self.columns(before, begin, end)
                mine.meta = {**user.meta, **mine.meta}
                user.replace_all_uses_with(mine)

    def columns(self, node: Node, begin: int, end: int) -> Node:
        """Some columns of a matrix, or places of a vector."""
        for part in self.parts.get(node, ()):
            if part.begin <= begin and end <= part.end:
                if (part.begin, part.end) == (begin, end):
                    return part.node
                node, begin, end = part.node, begin - part.begin, end - part.begin
                break
        return self.graph.call_function(_aten.slice.Tensor, (node, -1, begin, end))

    def join(self, node: Node) -> None:
        """Join the parts for those that need all."""
        users = [user for user in node.users if user not in self.parts]
        if users and node.target is not _aten.cat.default:
            parts = [part.node for part in self.parts[node]]
            whole = self.graph.call_function(_aten.cat.default, (parts, 1))
            whole.meta = dict(node.meta)
            for user in users:
                user.replace_input_with(node, whole)

    def _call(self, like: Node, args: Any, kwargs: Any = None) -> Node:
        target: Any = like.target
        return self.graph.call_function(target, tuple(args), kwargs or {})


def _elementwise(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    draws = torch.Tag.nondeterministic_seeded in tags
    return not draws and (torch.Tag.pointwise in tags or node.target in ELEMENTWISE)


def changes_numbers(node: Node) -> bool:
    """Whether an operator changes a tensor's numbers in place."""
    schema = getattr(node.target, "_schema", None)
    shapes_only = torch.Tag.inplace_view in getattr(node.target, "tags", ())
    return schema is not None and schema.is_mutable and not shapes_only


def _fits(shape: Sequence[int], columns: int) -> bool:
    """Whether a value can be cut by columns, or holds for all."""
    return columns > 1 and len(shape) <= 2 and (not shape or shape[-1] in (1, columns))


def _shape(node: Node) -> tuple[int, ...]:
    if node.op == "get_attr":
        value: Any = node.graph.owning_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return tuple(value.shape)
    meta: Any = node.meta.get("tensor_meta")
    return tuple(meta.shape) if hasattr(meta, "shape") else (-1, -1, -1)
