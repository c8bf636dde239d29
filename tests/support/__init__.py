"""Fixtures shared by the tests: small real models whose right answers are known."""
