"""The publications whose tables and figures are repeated, by the short names that entries give them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from privet_research.reproduction.entry import Entry

PUBLICATIONS: Mapping[str, str] = MappingProxyType(
    {
        "Bu et al. (2021)": (
            "Bu, Wang, Dai and Long (2021). On the convergence and calibration of deep learning with differential "
            "privacy. Preprint."
        ),
        "Xu and Chen (2026)": (
            "Xu and Chen (2026). Differential privacy in two-layer networks: how DP-SGD harms fairness and robustness."
        ),
        "Romijnders and Koskela (2025)": (
            "Romijnders and Koskela (2025). Convex approximation of two-layer ReLU networks for hidden state "
            "differential privacy. NeurIPS."
        ),
        "Xiang (2019)": (
            "Xiang, Yang and Li (2019). Differentially-private deep learning from an optimization perspective. INFOCOM."
        ),
        "Zhu and Blaschko (2023)": (
            "Zhu and Blaschko (2023). Improving differentially private SGD via randomly sparsified gradients. TMLR."
        ),
    }
)


def by_publication(entries: Mapping[str, Entry]) -> Mapping[str, Mapping[str, Entry]]:
    """Return the entries of every publication, by its authors, year and title; both in the order of the entries.

    Edge cases: a publication that is not listed here goes by the short name that its entries give it.
    """
    found: dict[str, dict[str, Entry]] = {}
    for name, entry in entries.items():
        found.setdefault(PUBLICATIONS.get(entry.paper, entry.paper), {})[name] = entry
    return found
