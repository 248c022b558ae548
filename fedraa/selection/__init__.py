"""The components that the option `participation` can name. They choose the clients that train."""
