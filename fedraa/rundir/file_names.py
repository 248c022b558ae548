"""The names of the files of a run directory."""

# The whole resolved configuration.
CONFIG = "config.json"
# The events, one JSON object per line.
EVENTS = "events.jsonl"
# The evaluations, one row each.
EVALS = "evals.csv"
# The results of each client, if the user requests them.
CLIENTS = "clients.csv"
# The partition of the data: the samples of each client.
PARTITION = "partition.npz"
# The totals of a finished run.
SUMMARY = "summary.json"
# The final parameters, for torch.load.
MODEL = "model.pt"
# The folder of the checkpoints.
CHECKPOINTS = "checkpoints"
# The reason why the run failed. A resume removes this file.
FAILURE = "failure.txt"
# Digests of the other files of a finished run, for `sha256sum -c`.
SEAL = "SHA256SUMS"
