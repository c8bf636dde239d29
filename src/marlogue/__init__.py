"""Marlogue: multi-agent reinforcement learning for teams of language models."""
