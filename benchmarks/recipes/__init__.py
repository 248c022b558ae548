"""Studies by name: each a function from a scale to what is run."""

from collections.abc import Callable

from benchmarks.recipes import ramfed, subdismo
from benchmarks.recipes.scale import Scale
from benchmarks.study import Study

Recipe = Callable[[Scale], Study]

RECIPES: dict[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        ramfed.ramfed_mnist,
        subdismo.subdismo_delta,
    )
}
