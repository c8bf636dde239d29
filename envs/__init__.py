"""Text environments as PettingZoo parallel environments."""

from marlogue.envs.aec import to_aec
from marlogue.envs.joint_text import joint_text
from marlogue.envs.reward_processors import RewardProcessors
from marlogue.envs.rewards import batched_reward
from marlogue.envs.rows import RowOrder
from marlogue.envs.runner import BatchRunner, Episode, Start
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.text_env import StepResult, TextEnv

__all__ = [
    "BatchRunner",
    "Episode",
    "RewardProcessors",
    "RowOrder",
    "Start",
    "StepResult",
    "TextEnv",
    "UnicodeText",
    "batched_reward",
    "joint_text",
    "to_aec",
]
