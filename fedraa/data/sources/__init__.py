"""Sources of samples. Clients read their samples from files, tables, arrays or functions."""
