"""Sources of samples: files, tables, arrays and functions from which clients read their samples."""
