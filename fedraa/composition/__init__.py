"""Methods as four choices, and the rules about combinations of choices."""
