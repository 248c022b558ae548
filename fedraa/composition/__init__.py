"""Methods, each a combination of four choices, and checks that reject choices that do not work together."""
