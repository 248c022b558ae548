"""The tracer: it runs a module and finds which neurons, channels and heads can be removed together.

labels.py explains how, with an example.
"""
