"""SplitFed: clients hold the first layers, and the server holds all others (Thapa et al. 2022, SplitFedV1).

Each step: the client sends the activations of its last layer; the server finishes the forward pass, starts the backward
    pass, and sends back the gradients of these activations
Round end: both halves of the model become the mean over the cohort

Read next: client/split.py (one step), submodels/policies/slices.py (`LayerCut`), methods/fedavg.py (the round).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.submodels.policies.slices import LayerCut

register(
    Method(
        name="splitfed",
        paper="Thapa et al. 2022, V1",
        formula=(
            "Clients hold the first layers, the server all others; activations and their gradients are sent at every "
            "step; both halves are averaged."
        ),
        when="Devices that can hold only the first layers, and have a fast connection.",
        submodel=LayerCut(),
        local=LocalTraining(split=LayerCut().layers),
        paper_settings=PaperSettings(
            source="authors' code",
            values={"local_epochs": 1, "batch_size": 256},
            unstated="the local settings for SGD, because its clients use Adam",
        ),
    )
)
