from privet.convex.descent import NoisyCGD as NoisyCGD
from privet.convex.estimator import ConvexReluClassifier as ConvexReluClassifier
from privet.convex.statistics import SufficientStatistics as SufficientStatistics
from privet.mechanism.strong_convexity import StronglyConvexDescent as StronglyConvexDescent
