"""Programs that train the same rounds of FedAvg in several frameworks, for `python -m benchmarks peers`.

Each framework has its own virtual environment.
"""
