from refusals import refuses

from benchmarks.system.option_checks import refuse_below, refuse_unknown_names


def test_refuse_unknown_names_known_names_pass() -> None:
    refuse_unknown_names("systems", ["ray", "local"], {"local": 1, "ray": 2})


def test_refuse_unknown_names_unknown_name_is_refused() -> None:
    with refuses("systems", got="slurm"):
        refuse_unknown_names("systems", ["ray", "slurm"], iter(("local", "ray")))


def test_refuse_below_every_number_of_a_list_is_checked() -> None:
    refuse_below(1, repeats=1, clients=(1, 2))
    with refuses("clients", "at least 1", got=(1, 0)):
        refuse_below(1, repeats=1, clients=(1, 0))
