"""Environments in other shapes, for other libraries."""
