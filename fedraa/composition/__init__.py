"""A method as four choices, and the rules about which of them go together."""
