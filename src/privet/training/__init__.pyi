from privet.training.session import Session as Session
from privet.training.session import Step as Step
from privet.training.start import privatize as privatize
