"""Studies that compare methods, and measurements of fedraa's speed, memory and fault tolerance."""
