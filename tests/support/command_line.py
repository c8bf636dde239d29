"""A small configuration, and what running a command gives."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

# Two agents with random weights, four rows; each run takes a second.
TINY = """\
algorithm: maac
env: coordination_v0
agents:
  - name: marlogue.tiny_model
    kwargs: {seed: 1, n_layer: 1, words: &words [dawn, noon, dusk, night, red, gold, blue, black]}
  - {name: marlogue.tiny_model, kwargs: {seed: 2, n_layer: 1, words: *words}}
critic_model: {name: marlogue.tiny_model, kwargs: {seed: 3, n_layer: 1, words: *words}}
args:
  num_generations: 2
  rollout_buffer_size: 8
  max_steps: 8
  agent_learning_rate: 3e-3
  max_new_tokens: 1
  eval_interval: 0
  verbose: false
"""

# Three agents of numbers, small networks.
NUMERIC = """\
algorithm: aac
env: {name: spread_v0, kwargs: {max_cycles: 10}}
args:
  total_steps: 150
  learning_starts: 50
  batch_size: 32
  hidden_size: 16
  num_heads: 2
  actor_hidden_sizes: [16]
  eval_interval: 0
  eval_episodes: 3
  verbose: false
"""


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]
