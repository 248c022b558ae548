"""Studies of methods: one recipe each."""
