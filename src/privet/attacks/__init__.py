"""Attacks on trained models and on gradients, compared with the limits that a guarantee sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.attacks.membership import MembershipScores as MembershipScores
    from privet.attacks.membership import Shadows as Shadows
    from privet.attacks.membership import likelihood_ratio as likelihood_ratio
    from privet.attacks.membership import loss_threshold as loss_threshold
    from privet.attacks.membership import train_shadows as train_shadows
    from privet.attacks.membership_verdict import MembershipReport as MembershipReport
    from privet.attacks.membership_verdict import membership_report as membership_report
    from privet.attacks.reconstruction.methods import InvertingGradients as InvertingGradients
    from privet.attacks.reconstruction.methods import Reconstructions as Reconstructions
    from privet.attacks.reconstruction.methods import least_squares as least_squares
    from privet.attacks.reconstruction.methods import least_squares_bound as least_squares_bound
    from privet.attacks.reconstruction.methods import least_squares_errors as least_squares_errors
    from privet.training.predictions import Predictions as Predictions
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.attacks.membership": (
                "MembershipScores",
                "Shadows",
                "likelihood_ratio",
                "loss_threshold",
                "train_shadows",
            ),
            "privet.attacks.reconstruction.methods": (
                "InvertingGradients",
                "Reconstructions",
                "least_squares",
                "least_squares_bound",
                "least_squares_errors",
            ),
            "privet.attacks.membership_verdict": ("MembershipReport", "membership_report"),
            "privet.training.predictions": ("Predictions",),
        },
    )
