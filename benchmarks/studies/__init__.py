"""Studies that compare methods. Each study is defined by a function in `recipes/`."""
