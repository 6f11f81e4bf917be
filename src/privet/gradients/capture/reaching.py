"""Checks that recorded uses account for every trainable parameter that autograd reaches; refuses the program otherwise.

A path to a parameter that the capture did not see (a custom autograd function, a compiled or scripted region) would
lose a gradient silently. For each new program the autograd graph is therefore walked from the losses. Values play no
part: a gradient that is zero today is found as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.autograd_graph import Node, nodes_behind
from privet.gradients.capture.recorded import Reach, Recording, Region, Source, tensors_in
from privet.mechanism.layout import Layout


def reach_of(losses: Tensor, recording: Recording, parameters: Sequence[nn.Parameter], layout: Layout) -> Reach:
    """Walk the autograd graph behind the losses.

    Guarantee:
        Every path from the losses to a trainable parameter leads through a recorded use that accounts for it.

    Raises:
        NoExampleRule: naming the parameters for which that is not so.
    """
    walk = _Walk(recording, parameters)
    walk.run(losses.grad_fn)
    if walk.missed:
        raise NoExampleRule(
            f"Autograd reaches {_named(walk.missed, layout)} in a way that could not be observed (a compiled region, a "
            "scripted module, a custom autograd function, an assignment into a part of a tensor), so per-example "
            "gradients would be lost. Call the model uncompiled and without custom functions on these parameters, or "
            "freeze them."
        )
    return Reach(roots=walk.roots(), num_reached=len(walk.reached))


def check_module_hooks(model: nn.Module) -> None:
    """Refuse backward hooks of the old kind, which sit where weight gradients leave and may replace them.

    Raises:
        UnsupportedModel: naming the modules.
    """
    hooked = [(name, module) for name, module in model.named_modules() if module._backward_hooks]
    old = [name for name, module in hooked if not module._is_full_backward_hook]
    if old:
        raise UnsupportedModel(
            f"Modules {old} have backward hooks of the old kind (register_backward_hook), which may replace gradients "
            "of weights. Use register_full_backward_hook."
        )


def _named(places: Iterable[int], layout: Layout) -> list[str]:
    return sorted(layout.names[place] for place in places)


@dataclass(kw_only=True, eq=False)
class _Inside:
    """The nodes of an operation that accounts for its parameters as a whole, and those parameters' own nodes."""

    nodes: set[Node]
    sources: set[Node]


class _Walk:
    """One walk through a graph."""

    def __init__(self, recording: Recording, parameters: Sequence[nn.Parameter]) -> None:
        self._recording = recording
        self._place = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._uses: dict[Node, list[int]] = {}
        for index, use in enumerate(recording.uses):
            if use.edge is not None:
                self._uses.setdefault(use.edge.node, []).append(index)
        self._inside = [_inside(region) for region in recording.regions]
        self._checked: set[int] = set()
        self.reached: set[int] = set()
        self.missed: set[int] = set()
        self._children: dict[Node, list[Node]] = {}

    def run(self, start: Node) -> None:
        """Visit every node between the losses and the leaves, except those that recorded uses account for."""
        queue = [start]
        while queue:
            node = queue.pop()
            if node is None or node in self._children:
                continue
            self._children[node] = children = list(self._behind(node))
            self._note_leaf(node)
            queue.extend(children)

    def _note_leaf(self, node: Node) -> None:
        place = self._place.get(id(getattr(node, "variable", None)))
        if place is not None:
            self.missed.add(place)

    def _behind(self, node: Node) -> Iterator[Node]:
        """Yield the nodes behind one; behind a use, only those of arguments whose gradients it does not form."""
        indices = self._uses.get(node)
        if indices is None:
            covered = {source for inside in self._inside if node in inside.nodes for source in inside.sources}
            yield from (child for child, _ in node.next_functions if child is not None and child not in covered)
            return
        for index in indices:
            use = self._recording.uses[index]
            self.reached.add(index)
            for source in use.sources:
                self._check_source(source)
            own = {id(source.tensor) for source in use.sources}
            for tensor in tensors_in((use.args, use.kwargs)):
                if tensor.requires_grad and id(tensor) not in own and tensor is not use.written:
                    yield get_gradient_edge(tensor).node
            if use.node_before is not None:
                yield use.node_before

    def _check_source(self, source: Source) -> None:
        """Check that a derived tensor depends on no other parameters than its source says."""
        if not source.derived or id(source.tensor) in self._checked:
            return
        self._checked.add(id(source.tensor))
        for node in nodes_behind([source.tensor.grad_fn]):
            place = self._place.get(id(getattr(node, "variable", None)))
            if place is not None and place not in source.parameters:
                self.missed.add(place)

    def roots(self) -> tuple[bool, ...]:
        """Return for each use whether no other use lies behind it."""
        leads: dict[Node, bool] = {}
        for node in _postorder(self._children):
            leads[node] = any(leads.get(child, False) or child in self._uses for child in self._children[node])
        return tuple(use.edge is None or not leads.get(use.edge.node, False) for use in self._recording.uses)


def _postorder(children: Mapping[Node, Sequence[Node]]) -> Iterator[Node]:
    """Yield every node after all nodes behind it."""
    seen: set[Node] = set()
    for start in children:
        queue: list[tuple[Node, bool]] = [(start, False)]
        while queue:
            node, is_done = queue.pop()
            if is_done:
                yield node
            elif node not in seen and node in children:
                seen.add(node)
                queue.append((node, True))
                queue.extend((child, False) for child in children[node])


def _inside(region: Region) -> _Inside:
    sources = {get_gradient_edge(tensor).node for tensor in region.sources if tensor.requires_grad}
    ends = sources | {get_gradient_edge(tensor).node for tensor in region.inputs if tensor.requires_grad}
    return _Inside(nodes=nodes_behind(region.outputs, ends), sources=sources)
