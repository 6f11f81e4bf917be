from privet.accounting.calibration import calibrate_noise as calibrate_noise
from privet.accounting.guarantee import Guarantee as Guarantee
from privet.accounting.guarantee import guarantee as guarantee_of
from privet.accounting.ledger import Ledger as Ledger

__all__ = ["Guarantee", "Ledger", "calibrate_noise", "guarantee_of"]
