from refusals import refuses

from benchmarks.system.known_names import refuse_unknown_names


def test_refuse_unknown_names_known_names_pass() -> None:
    refuse_unknown_names("systems", ["ray", "local"], {"local": 1, "ray": 2})


def test_refuse_unknown_names_unknown_name_is_refused() -> None:
    with refuses("systems", got="slurm"):
        refuse_unknown_names("systems", ["ray", "slurm"], iter(("local", "ray")))
