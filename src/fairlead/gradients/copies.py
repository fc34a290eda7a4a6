"""Short copies of a loop's points, made where the points are made.

A compiled step begins with bfloat16 copies of the large parameters of its point, which the step before has just written. Made in
that step, by the kernel that writes the point, they cost no pass of their own over it. They are carried to the next step beside
the point.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fairlead.gradients import apart

_aten = torch.ops.aten


class Copies:
    """The copies that a step makes of what is carried: its first inputs, and on their way on, its results. From now on the
    step gets the copies after its other inputs, and returns new ones after its results.

    A step that changes numbers in place stays as it is: what is copied may have been changed by way of a view.
    """

    def __init__(self, step: GraphModule, carried: int) -> None:
        graph, output = step.graph, step.graph.output_node()
        given = [node for node in graph.nodes if node.op == "placeholder"]
        results = list(output.args[0])  # pyright: ignore[reportArgumentType, reportCallIssue]
        changes = any(apart.changes_numbers(node) for node in graph.nodes)
        copies = [] if changes else [node for node in graph.nodes if _is_copy(node)]
        chains = {node: chain for node in copies if (chain := _chain(node, given[:carried]))}
        self.count = len(chains)
        if not chains:
            return
        with graph.inserting_before(output):
            new = _repeated(graph, chains, dict(zip(given, results, strict=False)))
        output.args = ([*results, *new],)
        self._first = _alone(step, given[:carried], chains)
        last = given[-1]
        for place, node in enumerate(chains):
            with graph.inserting_after(last):
                last = graph.placeholder(f"copy_{place}")
            last.meta = dict(node.meta)
            node.replace_all_uses_with(last)
        graph.eliminate_dead_code()
        step.recompile()

    def of(self, carried: Sequence[Tensor]) -> list[Tensor]:
        """Those of what is carried into the first step."""
        return self._first(*carried) if self.count else []


def _is_copy(node: Node) -> bool:
    """Whether it makes a large bfloat16 copy whose numbers lie in order."""
    if node.target is not _aten._to_copy.default or node.kwargs.get("dtype") != torch.bfloat16:
        return False
    meta = node.meta["tensor_meta"]
    in_order = torch.empty(meta.shape, device="meta").stride() == meta.stride
    return in_order and meta.shape.numel() >= apart.LARGE


def _chain(node: Node, carried: Sequence[Node]) -> list[Node]:
    """The operators from something carried to a copy of a part of it, the copy last; empty if it depends on anything else."""
    chain = [node]
    while chain[0].all_input_nodes:
        if len(chain[0].all_input_nodes) > 1:
            return []
        (before,) = chain[0].all_input_nodes
        if before in carried:
            return chain
        chain.insert(0, before)
    return []


def _repeated(graph: Graph, chains: dict[Node, list[Node]], known: dict[Node, Node]) -> list[Node]:
    """The chains once more in a graph, from the nodes that stand for what is carried."""
    for chain in chains.values():
        for node in chain:
            if node not in known:
                known[node] = graph.node_copy(node, known.__getitem__)
    return [known[node] for node in chains]


def _alone(step: GraphModule, carried: Sequence[Node], chains: dict[Node, list[Node]]) -> GraphModule:  # fmt: skip
    """The chains as a function of what is carried."""
    graph = Graph()
    known = {node: graph.placeholder(node.name) for node in carried}
    graph.output(_repeated(graph, chains, known))
    return GraphModule(step, graph)
