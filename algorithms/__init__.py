"""Learners: MAAC and IAC, their configurations, and what they are made of."""

from marlogue.algorithms.aac import AACTrainer
from marlogue.algorithms.aac_config import AACConfig
from marlogue.algorithms.annealing import Anneal
from marlogue.algorithms.callbacks import Callback
from marlogue.algorithms.checkpoints import CheckpointError
from marlogue.algorithms.config import ActorCriticConfig, IACConfig, MAACConfig
from marlogue.algorithms.iac import IACTrainer
from marlogue.algorithms.interruption import RunInterrupted
from marlogue.algorithms.maac import MAACTrainer
from marlogue.algorithms.on_policy import OnPolicyTrainer
from marlogue.algorithms.run_description import ResumeError
from marlogue.algorithms.run_folder import RunFolderError, fresh_folder
from marlogue.algorithms.sample import Joint, Sample
from marlogue.algorithms.saving import load_team

__all__ = [
    "AACConfig",
    "AACTrainer",
    "ActorCriticConfig",
    "Anneal",
    "Callback",
    "CheckpointError",
    "IACConfig",
    "IACTrainer",
    "Joint",
    "MAACConfig",
    "MAACTrainer",
    "OnPolicyTrainer",
    "ResumeError",
    "RunFolderError",
    "RunInterrupted",
    "Sample",
    "fresh_folder",
    "load_team",
]
