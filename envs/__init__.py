"""Text environments as PettingZoo parallel environments."""
