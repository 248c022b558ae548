"""Servers that apply client updates, one at a time or in rounds.

A server shard holds a part of the model. Its process imports only modules of this package that do not import torch.
"""
