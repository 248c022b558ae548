"""The exchangeable parts of a run, which a user can choose by name, import or create."""
