"""Text environments in other shapes, for other libraries.

Views are imported from here. What belongs to one library is in a module of its own, which that
library is imported by: `marlogue.wrappers.sb3`, `.torchrl`, `.benchmarl`, `.rllib`, `.agilerl`,
`.epymarl`, `.trl`, `.verifiers`, `.openenv`, `.textarena`, `.gem`.

Importing this package registers the tasks with Gymnasium, as `marlogue/coordination-v0` and so on.
"""

from marlogue.wrappers import registration as registration
from marlogue.wrappers.action_mask import ActionMask
from marlogue.wrappers.candidate_sources import CandidateSource, Request
from marlogue.wrappers.candidates import CandidateActions
from marlogue.wrappers.dict_prompt import DictPrompt
from marlogue.wrappers.embeddings import EmbedObservations, HashedNgrams
from marlogue.wrappers.history import History
from marlogue.wrappers.numeric_state import NumericState
from marlogue.wrappers.record import Record, RecordedEpisode, RecordedTurn, replay
from marlogue.wrappers.sampled_candidates import SampledCandidates
from marlogue.wrappers.single_agent import SingleAgent
from marlogue.wrappers.subteam import Subteam
from marlogue.wrappers.token_by_token import TokenByToken
from marlogue.wrappers.tokens import TokenActions, TokenObservations
from marlogue.wrappers.turn_based import Turn, TurnBased, TurnBasedGame
from marlogue.wrappers.uniform_end import UniformEnd
from marlogue.wrappers.vector import TextVectorEnv
from marlogue.wrappers.view import View
from marlogue.wrappers.vocabulary import TokenizerVocabulary, Vocabulary, Words

__all__ = [
    "ActionMask",
    "CandidateActions",
    "CandidateSource",
    "DictPrompt",
    "EmbedObservations",
    "HashedNgrams",
    "History",
    "NumericState",
    "Record",
    "RecordedEpisode",
    "RecordedTurn",
    "Request",
    "SampledCandidates",
    "SingleAgent",
    "Subteam",
    "TextVectorEnv",
    "TokenActions",
    "TokenByToken",
    "TokenObservations",
    "TokenizerVocabulary",
    "Turn",
    "TurnBased",
    "TurnBasedGame",
    "UniformEnd",
    "View",
    "Vocabulary",
    "Words",
    "replay",
]
