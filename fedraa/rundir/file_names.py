"""What the files of a run directory are called."""

CONFIG = "config.json"  # the whole resolved configuration
EVENTS = "events.jsonl"  # what happened, one JSON object a line
EVALS = "evals.csv"  # the evaluations, one row each
CLIENTS = "clients.csv"  # the results of each client; there if the user asks for them
PARTITION = "partition.npz"  # which sample belongs to which client
SUMMARY = "summary.json"  # totals; there once the run has ended
MODEL = "model.pt"  # the final parameters, for torch.load
CHECKPOINTS = "checkpoints"  # a folder
FAILURE = "failure.txt"  # why the run failed; there until it is resumed
SEAL = "SHA256SUMS"  # digests of the other files, for `sha256sum -c`; there once the run has ended
