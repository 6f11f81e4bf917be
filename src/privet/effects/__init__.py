"""Effects of private training on a model: convergence, confidence, fairness and robustness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.effects.confidence import calibration_report as calibration_report
    from privet.effects.fairness import Attribute as Attribute
    from privet.effects.fairness import decision_disparity as decision_disparity
    from privet.effects.fairness import fairness_report as fairness_report
    from privet.effects.feature_to_noise import PatchCell as PatchCell
    from privet.effects.feature_to_noise import PatchSetting as PatchSetting
    from privet.effects.feature_to_noise import class_loss as class_loss
    from privet.effects.feature_to_noise import disparity_sources as disparity_sources
    from privet.effects.groups import FairnessReport as FairnessReport
    from privet.effects.mitigation import charged_for_group_rates as charged_for_group_rates
    from privet.effects.mitigation import group_weighted as group_weighted
    from privet.effects.model_sensitivity import ModelSensitivity as ModelSensitivity
    from privet.effects.model_sensitivity import measure_sensitivity as measure_sensitivity
    from privet.effects.radii import RobustnessReport as RobustnessReport
    from privet.effects.reliability import CalibrationReport as CalibrationReport
    from privet.effects.robustness import Euclidean as Euclidean
    from privet.effects.robustness import LargestChange as LargestChange
    from privet.effects.robustness import ProjectedGradient as ProjectedGradient
    from privet.effects.robustness import robustness_curve as robustness_curve
    from privet.effects.sparsification import ConvergenceTerms as ConvergenceTerms
    from privet.effects.sparsification import Kappa as Kappa
    from privet.effects.sparsification import equivalent_clipping as equivalent_clipping
    from privet.effects.sparsification import measured_kappa as measured_kappa
    from privet.effects.sparsification import per_example_gradients as per_example_gradients
    from privet.effects.tangent_kernel import KernelReport as KernelReport
    from privet.effects.tangent_kernel import kernel_report as kernel_report
    from privet.effects.tangent_kernel import neural_tangent_kernel as neural_tangent_kernel
    from privet.effects.temperature import PrivateTemperature as PrivateTemperature
    from privet.effects.temperature import fit_temperature as fit_temperature
    from privet.effects.temperature import fit_temperature_privately as fit_temperature_privately
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.effects.confidence": ("calibration_report",),
            "privet.effects.fairness": ("Attribute", "decision_disparity", "fairness_report"),
            "privet.effects.feature_to_noise": ("PatchCell", "PatchSetting", "class_loss", "disparity_sources"),
            "privet.effects.groups": ("FairnessReport",),
            "privet.effects.mitigation": ("charged_for_group_rates", "group_weighted"),
            "privet.effects.model_sensitivity": ("ModelSensitivity", "measure_sensitivity"),
            "privet.effects.radii": ("RobustnessReport",),
            "privet.effects.reliability": ("CalibrationReport",),
            "privet.effects.robustness": ("Euclidean", "LargestChange", "ProjectedGradient", "robustness_curve"),
            "privet.effects.sparsification": (
                "ConvergenceTerms",
                "Kappa",
                "equivalent_clipping",
                "measured_kappa",
                "per_example_gradients",
            ),
            "privet.effects.tangent_kernel": ("KernelReport", "kernel_report", "neural_tangent_kernel"),
            "privet.effects.temperature": ("PrivateTemperature", "fit_temperature", "fit_temperature_privately"),
        },
    )
