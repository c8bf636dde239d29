"""Environments of texts, and of vectors, as PettingZoo parallel environments."""

from marlogue.envs import (
    cloud_scheduling_v0,
    code_pair_v0,
    coordination_v0,
    pursuit_v0,
    spread_v0,
    story_length_v0,
)
from marlogue.envs.aec import to_aec
from marlogue.envs.checks import check_text_env
from marlogue.envs.episodes import StepResult
from marlogue.envs.joint_text import joint_text
from marlogue.envs.registry import NUMERIC_TASKS, TASKS, make, make_numeric
from marlogue.envs.reward_calls import RewardWorkerError
from marlogue.envs.reward_drops import TooManyDroppedError
from marlogue.envs.reward_processors import RewardProcessors
from marlogue.envs.rewards import batched_reward
from marlogue.envs.rows import RowOrder
from marlogue.envs.runner import BatchRunner, Episode, Start
from marlogue.envs.spaces import UnicodeText
from marlogue.envs.text_env import TextEnv, env, parallel_env, raw_env
from marlogue.envs.trial import ConformanceError
from marlogue.envs.waiting import WAITS

__all__ = [
    "NUMERIC_TASKS",
    "TASKS",
    "WAITS",
    "BatchRunner",
    "ConformanceError",
    "Episode",
    "RewardProcessors",
    "RewardWorkerError",
    "RowOrder",
    "Start",
    "StepResult",
    "TextEnv",
    "TooManyDroppedError",
    "UnicodeText",
    "batched_reward",
    "check_text_env",
    "cloud_scheduling_v0",
    "code_pair_v0",
    "coordination_v0",
    "env",
    "joint_text",
    "make",
    "make_numeric",
    "parallel_env",
    "pursuit_v0",
    "raw_env",
    "spread_v0",
    "story_length_v0",
    "to_aec",
]
