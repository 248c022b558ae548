"""Small, randomly initialised models of three libraries, each with a batch of two samples.

A model's name is `library:name`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree
from fedraa.errors import InputError

SIDE = 64
# Widths and heights of images in pixels. A model gets images of the first size that it accepts.
_SIDES = (SIDE, 56, 96, 128, 224, 299)

_TIMM = """
    botnet26t_256 cait_xxs24_224 caformer_s18 coat_lite_tiny coatnet_pico_rw_224 convit_tiny
    convmixer_768_32 convnext_atto convnextv2_atto crossvit_9_240 cs3darknet_s cspresnet50 davit_tiny
    deit_tiny_distilled_patch16_224 densenet121 dla34 dpn68 edgenext_xx_small efficientformer_l1 efficientnet_b0
    efficientvit_b0 ese_vovnet19b_dw eva02_tiny_patch14_224 fastvit_t8 fbnetv3_b focalnet_tiny_srf gernet_s
    ghostnet_050 hardcorenas_a hgnetv2_b0 hrnet_w18_small inception_next_atto lcnet_050 levit_128s mixer_s32_224
    mnasnet_050 mobilenetv3_small_050 mobilenetv4_conv_small mobilevit_xxs mvitv2_tiny nest_tiny pit_ti_224
    poolformer_s12 pvt_v2_b0 regnety_002 repvgg_a0 repvit_m0_9 res2net50_14w_8s resmlp_12_224 resnest14d resnetv2_18
    rexnet_100 seresnext26d_32x4d skresnet18 swin_tiny_patch4_window7_224 twins_svt_small vit_small_patch32_224
    visformer_tiny volo_d1_224 xcit_nano_12_p16_224"""

_KINDS = {
    "AutoModelForCausalLM": """
        bloom codegen falcon gemma gemma2 gpt2 gpt_neo gpt_neox gptj llama mamba mistral mixtral olmo2 opt phi phi3
        qwen2 qwen3 stablelm""",
    "AutoModelForSequenceClassification": """
        albert bert deberta deberta-v2 distilbert electra modernbert mpnet roberta roformer""",
    "AutoModelForSeq2SeqLM": "bart pegasus t5",
    "AutoModelForSpeechSeq2Seq": "whisper",
    "AutoModelForImageClassification": "beit convnext dinov2 resnet swin vit",
}
TRANSFORMERS: dict[str, str] = {}
for _kind, _names in _KINDS.items():
    TRANSFORMERS |= dict.fromkeys(_names.split(), _kind)

# Small sizes for models of the library `transformers`, by the name of the configuration field.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 256),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads"), 4),
    "decoder_attention_heads": 4,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim"), 16),
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "image_size": SIDE,
    "patch_size": 8,
    "num_mel_bins": 16,
    "num_local_experts": 4,
    "global_attn_every_n_layers": 2,
}
_ODD: dict[str, dict[str, Any]] = {
    "distilbert": {"hidden_dim": 256},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_heads": 4},
    "swin": {"window_size": 2},
    "t5": {"num_heads": 4},
}


def list_models(library: str) -> list[str]:
    """Return the tested models of a library; for torchvision all classifiers."""
    if library == "torchvision":
        models = _import_torchvision()
        return list(models.list_models(module=models))
    if library == "timm":
        return _TIMM.split()
    return list(TRANSFORMERS)


def build_zoo_model(name: str) -> tuple[nn.Module, Tree]:
    """Return the model `library:name` with random weights, and a batch for it.

    Raises ValueError if the library does not exist or is not installed.
    """
    library, _, model = name.partition(":")
    if library not in LIBRARIES or not model:
        raise InputError("model", got=name, expected=f"one of {', '.join(LIBRARIES)}, a colon and a name")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return LIBRARIES[library](model)
        except ModuleNotFoundError as error:
            hint = "install it: pip install 'fedraa[zoo]'"
            raise InputError("model", f"{name} needs the package {error.name}", hint=hint) from None


def _import_torchvision() -> Any:
    return importlib.import_module("torchvision.models")


def _from_torchvision(name: str) -> tuple[nn.Module, Tensor]:
    options: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        # The random initialisation of these two models takes half a minute.
        options["init_weights"] = False
    architecture = name.split("_")[0]

    def make_model(side: int) -> nn.Module:
        if architecture == "vit":
            options["image_size"] = side
        elif architecture == "maxvit":
            options["input_size"] = (side, side)
        module: nn.Module = _import_torchvision().get_model(name, **options)
        return module

    return _for_images(name, [make_model])


def _from_timm(name: str) -> tuple[nn.Module, Tensor]:
    create = importlib.import_module("timm").create_model
    return _for_images(
        name, [lambda side: create(name, num_classes=10, img_size=side), lambda _: create(name, num_classes=10)]
    )


def _for_images(name: str, ways: Sequence[Callable[[int], nn.Module]]) -> tuple[nn.Module, Tensor]:
    """Return a model, and images of a size that it accepts. The first function in `ways` that works makes the model."""
    why = ""
    for side in _SIDES:
        for make in ways:
            x = torch.randn(2, 3, side, side)
            try:
                module = make(side)
                with torch.no_grad():
                    module.train()(x)
            except (TypeError, RuntimeError, ValueError, AssertionError, AttributeError, IndexError) as error:
                why = str(error) or type(error).__name__
            else:
                return module, x
    raise InputError("model", f"{name} takes no images of {', '.join(map(str, _SIDES))} pixels: {why.splitlines()[0]}")


def _from_transformers(name: str) -> tuple[nn.Module, Tree]:
    library = importlib.import_module("transformers")
    library.logging.set_verbosity_error()
    kind = TRANSFORMERS.get(name, "AutoModel")
    configured = library.CONFIG_MAPPING[name]
    usual = configured()
    names = list(_SIZES)
    # A pyramid model has a list with the size of each stage. This list stays, and only the image size is set.
    if hasattr(usual, "depths"):
        names = ["image_size"]
    own = [key for key in names if hasattr(usual, key) and not isinstance(getattr(configured, key, None), property)]
    sizes = {key: _SIZES[key] for key in own} | _ODD.get(name, {})
    module: nn.Module = getattr(library, kind).from_config(configured(**sizes))
    tokens = torch.randint(3, 100, (2, 12))
    if "Image" in kind:
        return module, {"pixel_values": torch.randn(2, 3, SIDE, SIDE)}
    if "Speech" in kind:
        return module, {"input_features": torch.randn(2, 16, 128), "decoder_input_ids": tokens}
    if "Seq2Seq" in kind:
        return module, {"input_ids": tokens, "decoder_input_ids": tokens.flip(0)}
    return module, {"input_ids": tokens}


LIBRARIES: dict[str, Callable[[str], tuple[nn.Module, Tree]]] = {
    "torchvision": _from_torchvision,
    "timm": _from_timm,
    "transformers": _from_transformers,
}
