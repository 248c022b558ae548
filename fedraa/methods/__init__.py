"""Built-in methods: a module each, in which a method is four choices."""
