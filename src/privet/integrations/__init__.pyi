from privet.integrations.engine_shape import PrivacyEngine as PrivacyEngine
from privet.integrations.hugging_face.private_run import Evaluation as Evaluation
from privet.integrations.hugging_face.private_run import PrivateRun as PrivateRun
from privet.integrations.hugging_face.trainer import PrivateTrainer as PrivateTrainer
from privet.integrations.hugging_face.trainer import PrivateTraining as PrivateTraining
from privet.integrations.lightning.module import PrivateModule as PrivateModule
from privet.integrations.lightning.module import PrivateSteps as PrivateSteps
