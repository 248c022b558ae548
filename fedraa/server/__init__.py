"""Servers that apply client updates, one at a time or in rounds.

Server shards, which each hold a part of the model, use only those modules of this package that do not import torch.
"""
