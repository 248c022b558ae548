"""SubDisMO's Tables 1 (Dirichlet 0.5, Dirichlet 1.0 and IID data) and 2: accuracies and standard deviations."""

from typing import Any

# CIFAR-10: for each row of the paper's table, the fields of our experiment, and the row's accuracies and standard
# deviations.
TABLE_1: dict[str, tuple[dict[str, Any], tuple[tuple[float, float], ...]]] = {
    "fedavg": ({"method": "fedavg"}, ((56.44, 5.28), (55.70, 2.96), (58.75, 1.65))),
    "fedsam": ({"method": "fedsam", "local.sam_rho": 0.1}, ((56.02, 4.80), (57.03, 2.62), (59.01, 1.58))),
    "ist.O": ({"method": "ist"}, ((36.82, 16.67), (38.06, 10.27), (45.81, 2.03))),
    "ist.P": ({"method": "ist+fedprox"}, ((33.66, 14.35), (37.96, 9.08), (45.68, 1.47))),
    "ist.S": ({"method": "ist+scaffold"}, ((30.73, 14.36), (33.78, 8.72), (41.26, 1.52))),
    "ist.A": ({"method": "ist+fedadam"}, ((39.02, 12.13), (41.26, 8.48), (47.59, 1.49))),
    "oap.O": ({"method": "oap"}, ((45.53, 12.13), (48.29, 9.29), (53.69, 1.52))),
    "oap.P": ({"method": "oap+fedprox"}, ((41.55, 12.51), (45.99, 7.18), (53.70, 1.56))),
    "oap.S": ({"method": "oap+scaffold"}, ((32.12, 10.63), (41.55, 7.17), (46.15, 1.67))),
    "oap.A": ({"method": "oap+fedadam"}, ((37.27, 9.65), (42.72, 7.16), (47.04, 1.34))),
    "prunefl.O": ({"method": "prunefl"}, ((44.87, 14.90), (48.20, 5.16), (53.04, 1.56))),
    "prunefl.P": ({"method": "prunefl+fedprox"}, ((44.02, 12.64), (49.71, 4.25), (52.35, 1.33))),
    "prunefl.S": ({"method": "prunefl+scaffold"}, ((37.22, 11.56), (47.11, 5.32), (43.20, 1.50))),
    "prunefl.A": ({"method": "prunefl+fedadam"}, ((39.32, 14.60), (41.31, 14.59), (52.78, 1.23))),
    "fedrolex.O": ({"method": "fedrolex+fedavg"}, ((40.07, 12.40), (44.84, 4.75), (45.46, 2.08))),
    "fedrolex.P": ({"method": "fedrolex+fedprox"}, ((41.12, 11.87), (45.27, 6.16), (49.72, 1.51))),
    "fedrolex.S": ({"method": "fedrolex+scaffold"}, ((35.12, 11.67), (40.60, 7.08), (45.53, 1.46))),
    "fedrolex.A": ({"method": "fedrolex+fedadam"}, ((37.58, 10.42), (43.41, 6.38), (47.23, 1.33))),
    "ram-fed": ({"method": "ram-fed"}, ((43.31, 11.49), (50.19, 4.16), (53.33, 1.42))),
    "subdismo": ({"method": "subdismo"}, ((48.50, 8.47), (51.23, 4.77), (55.99, 1.85))),
}
# CIFAR-100: the accuracies and standard deviations in each row of the paper's table.
TABLE_1_CIFAR100: dict[str, tuple[tuple[float, float], ...]] = {
    "fedavg": ((31.60, 2.50), (30.95, 2.90), (32.17, 0.95)),
    "fedsam": ((31.73, 2.38), (32.11, 2.68), (33.36, 1.09)),
    "ist.O": ((16.35, 7.17), (17.15, 5.54), (19.99, 0.48)),
    "ist.P": ((15.67, 6.59), (17.59, 4.86), (19.98, 0.43)),
    "ist.S": ((15.70, 6.82), (16.91, 5.29), (18.02, 2.91)),
    "ist.A": ((18.17, 5.60), (19.02, 2.81), (21.57, 1.57)),
    "oap.O": ((21.91, 6.92), (26.09, 6.97), (27.69, 1.65)),
    "oap.P": ((20.81, 6.35), (24.24, 4.10), (26.14, 1.51)),
    "oap.S": ((21.34, 2.46), (22.10, 3.10), (23.33, 1.08)),
    "oap.A": ((21.56, 3.70), (23.40, 3.68), (26.16, 1.57)),
    "prunefl.O": ((20.36, 6.90), (22.35, 5.80), (22.09, 1.36)),
    "prunefl.P": ((15.75, 6.22), (17.89, 5.44), (20.43, 1.46)),
    "prunefl.S": ((17.19, 3.59), (20.17, 3.22), (20.89, 1.01)),
    "prunefl.A": ((15.30, 5.25), (16.54, 3.99), (19.96, 0.88)),
    "fedrolex.O": ((20.69, 2.93), (21.73, 2.57), (22.34, 1.46)),
    "fedrolex.P": ((21.12, 3.59), (21.74, 4.34), (24.43, 1.28)),
    "fedrolex.S": ((19.24, 4.97), (20.78, 4.90), (23.42, 1.44)),
    "fedrolex.A": ((20.28, 5.72), (22.66, 5.72), (24.91, 1.61)),
    "ram-fed": ((20.42, 5.19), (23.25, 4.77), (24.52, 0.84)),
    "subdismo": ((23.17, 5.60), (25.43, 4.56), (28.24, 1.27)),
}
# CIFAR-10: the accuracy and the standard deviation for each radius δ.
TABLE_2: dict[float, tuple[float, float]] = {
    0.01: (49.73, 5.84),
    0.05: (50.66, 5.76),
    0.08: (50.99, 5.48),
    0.1: (51.23, 4.77),
    0.15: (50.30, 5.31),
    0.2: (50.58, 6.06),
    0.3: (50.48, 6.07),
}
