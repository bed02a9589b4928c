"""The decision which model runs where, as pure functions."""
