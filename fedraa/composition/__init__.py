"""Methods, and checks of methods. A method combines submodels, local training, a server update and a schedule."""
