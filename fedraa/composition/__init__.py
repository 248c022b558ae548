"""Methods, each a combination of four choices, and checks that the choices fit together."""
