"""Learners: collection, returns, losses and trainers."""
