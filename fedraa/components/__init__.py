"""Components: the exchangeable parts of a run. A user gives a name, an import path or an object."""
