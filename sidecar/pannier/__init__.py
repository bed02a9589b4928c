"""Pannier packs local models onto your GPUs and tells the chat how far a load has come."""

__version__ = "0.1.0"
