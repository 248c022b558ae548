"""The tracer: it runs any module once and finds the width groups in which units can be cut."""
