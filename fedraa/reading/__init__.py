"""Reading the files of a user: regular files, and tables in text files."""
