"""Slow, plain ways to the same answers, which the planner's search is checked against.

They share no code with it but the types of its items and results; each says by itself what is
allowed and what counts.
"""
