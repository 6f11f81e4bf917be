"""A loss function that takes one example at a time is exact for models that would mix a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import privet as pv
from privet.errors import DataError
from tests.isolation.coverage import session_sum

NODES = 4
EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


class Graphs(nn.Module):
    """Sums over the neighbours in one public graph, of many examples side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each example."""
        wide = (EDGES[:, None, :] + torch.arange(len(x))[None, :, None] * NODES).reshape(2, -1)
        sent = self.inner(x.reshape(-1, 3))[wide[0]]
        found = torch.zeros(len(x) * NODES, 5, dtype=x.dtype).index_add(0, wide[1], sent)
        return self.head(torch.tanh(found).reshape(len(x), NODES, 5).mean(1))  # type: ignore[no-any-return]


def _exact(model: nn.Module, loss: object, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
    parameters, gradients = list(model.parameters()), []
    for place in range(len(batch["x"])):
        one = {name: value[place : place + 1] for name, value in batch.items()}
        found = torch.autograd.grad(loss(one).sum(), parameters)  # type: ignore[operator]
        gradients.append(torch.cat([part.reshape(-1) for part in found]))
    bound = float(torch.stack(gradients).norm(dim=1).median())
    return sum(part * min(1.0, bound / float(part.norm())) for part in gradients), bound  # type: ignore[return-value]


def test_a_graph_of_all_examples_side_by_side_is_exact() -> None:
    torch.manual_seed(0)
    model = Graphs().double()
    batch = {"x": torch.randn(5, NODES, 3).double(), "y": torch.tensor([0, 1, 1, 0, 1])}

    def loss(given: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(given["x"]), given["y"], reduction="none")

    expected, bound = _exact(model, loss, batch)
    evidence: list[bool] = []
    for found in session_sum(model, pv.engines.one_at_a_time(loss), batch, bound, evidence):
        torch.testing.assert_close(found, expected)
    assert evidence == [True]


def test_batch_statistics_are_those_of_one_example() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    batch = {"x": torch.randn(4, 6, 3).double(), "y": torch.tensor([0, 1, 1, 0])}

    def loss(given: dict[str, Tensor]) -> Tensor:
        centred = given["x"] - given["x"].mean((0, 1))
        return functional.cross_entropy(model(centred.square().mean(1)), given["y"], reduction="none")

    expected, bound = _exact(model, loss, batch)
    for found in session_sum(model, pv.engines.one_at_a_time(loss), batch, bound, []):
        torch.testing.assert_close(found, expected)


def test_examples_that_meet_before_or_after_are_refused() -> None:
    model = nn.Linear(3, 2)
    batch = {"x": torch.randn(4, 3), "y": torch.tensor([0, 1, 1, 0])}
    apart = pv.engines.one_at_a_time(
        lambda given: functional.cross_entropy(model(given["x"]), given["y"], reduction="none")
    )
    before = lambda given: apart(given | {"x": given["x"] - given["x"].mean(0)})  # noqa: E731
    after = lambda given: apart(given) / len(given["x"])  # noqa: E731
    for loss in (before, after):
        with pytest.raises(pv.errors.UnsupportedModel):
            session_sum(model, loss, batch, 1.0, [])


@pytest.mark.parametrize("found", [torch.zeros(0), torch.zeros(2)], ids=["none", "two"])
def test_another_number_of_losses_than_one_is_an_error(found: Tensor) -> None:
    with pytest.raises(DataError, match=f"returned {len(found)} losses for one example"):
        pv.engines.one_at_a_time(lambda x: found)(torch.zeros(3, 2))


def test_a_batch_without_examples_is_an_error() -> None:
    with pytest.raises(DataError, match="first axis"):
        pv.engines.one_at_a_time(lambda x: x)(torch.tensor(1.0))
