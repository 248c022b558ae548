"""The race: time to accuracy of the asynchronous methods, tuned against tuned, beside the limit of what can be had."""
