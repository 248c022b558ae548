"""The same rounds of FedAvg in several frameworks, each in its own environment: `python -m benchmarks peers`."""
