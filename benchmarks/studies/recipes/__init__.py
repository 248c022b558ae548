"""The studies by name. A recipe is a function that returns a study in one size, such as `quick`."""

from collections.abc import Callable

from benchmarks.studies.recipes import (
    fedsam,
    few_rows,
    fleets,
    personal,
    privacy,
    quilt,
    raa,
    ramfed,
    robust,
    selection,
    shuffled,
    subdismo,
)
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Study

Recipe = Callable[[Scale], Study]

RECIPES: dict[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        ramfed.ramfed_memory,
        subdismo.subdismo_delta,
        raa.raa_baselines,
        raa.raa_own_time,
        raa.raa_cut_layers,
        raa.raa_clock,
        raa.raa_schedules,
        raa.raa_beta,
        raa.raa_fragments,
        raa.raa_in_flight,
        raa.raa_latency,
        ramfed.ramfed_table2_mnist,
        ramfed.ramfed_table2_cifar10,
        ramfed.ramfed_table3_agnews,
        ramfed.ramfed_coverage,
        ramfed.ramfed_schedule,
        ramfed.ramfed_rounds,
        ramfed.ramfed_participation,
        subdismo.subdismo_table1,
        subdismo.subdismo_forms,
        subdismo.subdismo_radius,
        subdismo.subdismo_architectures,
        subdismo.subdismo_masks,
        subdismo.subdismo_cost,
        subdismo.subdismo_clients,
        subdismo.subdismo_coverage,
        shuffled.shuffled_policies,
        shuffled.shuffled_norms,
        shuffled.shuffled_generalisation,
        fedsam.fedsam_emnist,
        fedsam.fedsam_cifar10,
        fedsam.fedsam_cifar100,
        fedsam.fedsam_overfit,
        fedsam.fedsam_flatness,
        fedsam.fedsam_small_clients,
        fedsam.fedsam_parameters,
        fedsam.fedsam_beta,
        fedsam.fedsam_momentum,
        few_rows.ramfed_memory_agnews,
        few_rows.ramfed_memory_cifar10,
        few_rows.fedsam_deviation,
        fleets.equal_budget,
        fleets.stragglers,
        fleets.staleness,
        fleets.networks,
        fleets.schedulers,
        fleets.best_lr,
        quilt.quilt_parts,
        quilt.quilt_parts_skewed,
        privacy.privacy_central,
        robust.robust_alie,
        robust.robust_attacks,
        robust.robust_backdoor,
        personal.personal_cifar10,
        personal.personal_shakespeare,
        selection.selection_lognormal,
    )
}
