"""Built-in methods, one module per paper.

A method consists of four choices: submodels, local training, update, schedule.
"""
