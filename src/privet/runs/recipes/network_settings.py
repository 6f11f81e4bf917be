"""The table of a recipe that names the user's own network: a Python file, weights, and what is trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privet.errors import RecipeError
from privet.runs.recipes.training_settings import Count, Table

OWN_NETWORK = "own_network"
"""The name under ``model`` of a recipe with a [network] table."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class NetworkSettings(Table):
    """The user's own network. Reading a recipe runs none of its code; building the network does, with consent.

    Attributes:
        file: The Python file; relative to the recipe's folder.
        function: The function or class in it that builds the network without arguments.
        sha256: Fingerprint of the file, which is refused if it has another one.
        weights: A safetensors file of public weights; relative to the recipe's folder.
        weights_sha256: Fingerprint of the weights.
        train: ``head``, ``all``, ``adapters``, or a pattern of names of parameters, such as ``classifier.*``.
        adapter_rank: Rank of the adapters.
    """

    file: Annotated[str, Field(pattern=r"\.py$")]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    sha256: Digest
    weights: str | None = None
    weights_sha256: Digest | None = None
    train: Annotated[str, Field(min_length=1, max_length=200)] = "all"
    adapter_rank: Count | None = None

    @property
    def reference(self) -> str:
        """``file.py:function``."""
        return f"{self.file}:{self.function}"

    @property
    def title(self) -> str:
        """``function`` and the name of its file, without folders."""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.function}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of a run with this network rests on."""
        return ("the pretrained weights, and the code that builds the network, were not made from these records",)

    def check(self) -> None:
        """Refuse a table whose parts do not fit together.

        Raises:
            RecipeError: naming the key.
        """
        if (self.weights is None) != (self.weights_sha256 is None):
            raise RecipeError(
                "network.weights and network.weights_sha256 go together: the weights of a run are known by their "
                "fingerprint. Give both, or neither."
            )
        if self.adapter_rank is not None and self.train != "adapters":
            raise RecipeError(
                f"network.adapter_rank is for train = 'adapters', and train is {self.train!r}. Remove it."
            )
