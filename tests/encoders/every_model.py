"""A small model of every type that transformers has a configuration of, and inputs of it."""

import contextlib
import functools
import importlib
import inspect
import itertools
import re
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

WIDTH, HEADS, HEAD_DIM, LAYERS, VOCABULARY, LONGEST = 32, 4, 8, 2, 99, 64
IMAGE, PATCH, WINDOW, SAMPLES = 32, 8, 4, 1920 * 5
MODEL_TYPES = list(CONFIG_MAPPING_NAMES)

# The first rule whose expression is in a field's name says what its number becomes. None: it stays.
RULES: list[tuple[str, int | None]] = [
    (r"upsample_groups", 2),
    (r"rope_pairs", 1),
    (
        r"coefficient|_cost$|ignore|kernel|stride|padding|temperature|_rate$|pretraining_tp|chunk_size_feed_forward",
        None,
    ),
    (r"num_labels|conv_pos|groups?$|n_lang|lang_id|_loss_|dropout|_offset$|eval_idx|merge_size|temporal_patch", None),
    (r"type_vocab_size|vocab_offset", None),
    (r"codebook_size", 64),
    (r"vocab_size|_vocab$|num_embeddings$", VOCABULARY),
    (r"n_mamba_heads", 2),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"num_groups$", 2),
    (r"upsample_initial_channel", 64),
    (r"index_kpool", 16),
    (r"index_topk", 16),
    (r"^d_head$|mamba_d_head|mamba_head_dim", HEAD_DIM),
    (r"^num_windows$", 4),
    (r"num_windows_side", 2),
    (r"right_context|left_context", 2),
    (r"sliding_window$|sliding_window_size|local_attention$|attention_window|window_len$", WINDOW * 2),
    (r"window_size", WINDOW // 2),
    (r"max.*position|n_positions|max_seq|n_ctx|context_length|max_text_tokens|max_length|max_ep_len|max_pos", LONGEST),
    (r"num_experts_per_tok|experts_per_token|moe_k$|topk$|top_k|moe_topk", 2),
    (r"expert.*(num|group)$|topk_group|n_group$", 1),
    (r"num_.*experts|n_routed|num_experts|zero_expert_num", 4),
    (r"(key_value|kv)_heads", HEADS // 2),
    (r"heads?$|n_head", HEADS),
    (r"qk_head_dim", 2 * HEAD_DIM),
    (r"rope_head_dim|head_dim|d_kv$|d_head|dim_head|kv_channels|head_width|rotary_dim|head_size", HEAD_DIM),
    (r"dense_replace|shared_layers|nextn", None),
    (r"layers?$|n_layer|^depth$|num_blocks$|resampler_depth|_depth$", LAYERS),
    (r"image_size$|input_size|max_img_size|crop_size|^resolution$|img_size", IMAGE),
    (r"patch_size$", PATCH),
    (r"num_frames|num_channels|in_channels$|audio_channels|input_channels|_scale$|^scale", None),
    (r"intermediate|ffn|mlp_dim|d_ff|dff|mlp_hidden|feed_forward|feedforward_dim|linear_units|d_inner", 40),
]
LAYER_FIELDS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers", "decoder_layers")
TOKEN = re.compile(r"token_(id|index)$|_(bos|eos|start|end|newline)_id$|_(pad|unk|mask)_index$|_pad_id$")
FILLED = {  # fields without a default of their own
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "vocab_size": VOCABULARY,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 40,
    "num_key_value_heads": HEADS,
    "indexer_n_heads": HEADS,
    "indexer_kv_heads": HEADS // 2,
    "indexer_head_dim": HEAD_DIM,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "prediction_length": 4,
    "top_k_experts": 2,
}
DROPPED = (
    "per_layer_config",
    "mtp_per_layer_config",
    "stage_names",
    "out_features",
    "out_indices",
    "id2label",
    "label2id",
    "_out_features",
    "_out_indices",
)
CLASSES = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "pp_chart2table_vision": None,
}
DEFAULTS = {  # of types that cannot be made without a field
    "nougat": {"encoder": {"model_type": "donut-swin"}, "decoder": {"model_type": "mbart"}},
}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SHARED_LAYERS = "transformers 5.23 asks for all layers to be shared, and then for one that is not"
NOT_BUILT = {"gemma4_assistant": SHARED_LAYERS, "gemma4_unified_assistant": SHARED_LAYERS}
READS = {"input_ids": "text", "pixel_values": "images", "input_": "sound", "": "other"}
LAYERED = {"rope_type": "default", "rope_theta": 10000.0}
FIELDS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": LAYERED, "sliding_attention": LAYERED}},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 40},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "bridgetower_vision_model": {"hidden_size": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [40] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "bit": {"num_groups": 2, "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {**LAYERED, "mrope_section": [1, 1, 2]},
        "moe_intermediate_size": [40, 24],
    },
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2},
    "swinv2": {"window_size": 4, "image_size": 64, "depths": [1, 1], "num_heads": [2, 4]},
    "mobilevit": {"hidden_sizes": [32, 40, 48]},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "diffusion_gemma_text": {"num_experts": 4},
    "qwen4_exp_text": {"indexer_kv_heads": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "gemma4_text": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    "gemma4_unified_text": {"hidden_size_per_layer_input": 0},
    "molmo2_adapter": {"vision_feature_layer": [-1, 0]},
    "zamba": {"num_hidden_layers": 6, "attn_layer_period": 2, "attn_layer_offset": 1, "layers_block_type": None},
    "efficientloftr": {"hidden_size": 32, "out_features": [8, 8, 16, 32], "stage_num_blocks": [1, 1, 1, 1]},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 96},
    "esm": {"mask_token_id": 4, "pad_token_id": 1},
    "xmod": {"default_language": "en_XX"},
    "markuplm": {"tag_pad_id": 5, "subs_pad_id": 6},
    "t5_gemma_module": {"attn_logit_softcapping": None},
    "timesformer": {"num_frames": 2},
    "tipsv2_dpt": {"neck_hidden_sizes": [8]},
    "swin": {"image_size": 64, "patch_size": 2, "depths": [1, 1], "num_heads": [2, 4]},
    "donut-swin": {"image_size": 64, "patch_size": 2, "depths": [1, 1], "num_heads": [2, 4]},
    "seamless_m4t": {"num_conv_pos_embedding_groups": 2},
    "seamless_m4t_v2": {"num_conv_pos_embedding_groups": 2},
    "d_fine": {
        "backbone_config": {**RESNET, "out_features": ["stage2", "stage3", "stage4"]},
        "encoder_in_channels": [16, 24, 32],
    },
    "upernet": {"backbone_config": {**RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    "maskformer": {"backbone_config": {**RESNET, "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "downsample_rate": "1/2",
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": IMAGE,
            "patch_size": PATCH,
        },
    },
    "esmfold2": {"single_inputs_size": 99},
    "pp_ocrv5_server_det": {"intraclass_block_number": 0, "kernel_list": [3, 2, 2]},
    "pp_ocrv6_medium_det": {"intraclass_block_number": 0},
    "FunAsrNanoAdaptorConfig": {"intermediate_size": 8},
    "qwen3_omni_moe_talker": {"spatial_merge_size": 2},
    "Qwen3OmniMoeTalkerConfig": {"spatial_merge_size": 2},
    "neomme": {"head_dim": 16},
    **{
        f"vibevoice_acoustic_tokenizer{part}": {
            "hidden_size": 32,
            "num_filters": 4,
            "downsampling_ratios": [2, 2],
            "depths": [1, 1, 1],
        }
        for part in ("", "_encoder", "_decoder")
    },
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 64},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "glm5_next_text": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "maskformer-swin": {"embed_dim": 24, "num_heads": [2, 2, 2, 2]},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6}},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
}  # of types whose fields depend on each other in a way of their own


def tiny_config(model_type: str) -> PreTrainedConfig:
    """A configuration of a type with two layers of width 32, its parts alike."""
    kind = CONFIG_MAPPING[model_type]
    whole = kind(**DEFAULTS.get(model_type, {}))
    return kind(**tiny_fields(whole))


def tiny_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """What a small configuration has otherwise than this one."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_") and name not in DROPPED}
    kept = kept_layers(values)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, PreTrainedConfig):
            if value.model_type == "timm_backbone":  # whose package may be missing
                fields[name] = {**tiny_fields(CONFIG_MAPPING["resnet"]()), "model_type": "resnet"}
                fields[name]["out_features"] = [f"stage{at}" for at in range(2, 5)]
                continue
            fields[name] = {**value.to_diff_dict(), **tiny_fields(value), "model_type": value.model_type}
            for dropped in DROPPED:
                fields[name].pop(dropped, None)
            continue
        small = small_value(name, value, kept)
        if small is not value:
            fields[name] = small
    heads = values.get("num_attention_heads")
    if values.get("num_key_value_heads") == heads and isinstance(heads, int):
        fields["num_key_value_heads"] = fields.get("num_attention_heads", heads)
    return {**fields, **FIELDS.get(config.model_type or type(config).__name__, {})}


def kept_layers(values: dict[str, Any]) -> tuple[int, list[int]]:
    """How many layers there are, and the numbers of those that are kept: one of every kind, at least two."""
    count = next((values[name] for name in LAYER_FIELDS if isinstance(values.get(name), int)), 0)
    lists = [x for x in values.values() if isinstance(x, (list, tuple)) and len(x) == count > LAYERS]
    first: dict[str, int] = {}
    for number, kind in enumerate(zip(*lists, strict=True)):
        first.setdefault(str(kind), number)
    others = [number for number in range(count) if number not in first.values()]
    return count, sorted([*first.values(), *others[: max(0, LAYERS - len(first))]][:4])


def small_value(name: str, value: Any, kept: tuple[int, list[int]]) -> Any:
    chosen = kept[1]
    if value is None:
        return FILLED.get(name)
    if isinstance(value, (bool, str, float)):
        return value
    if name == "rope_parameters":
        return small_rope(value)
    if isinstance(value, int):
        if TOKEN.search(name):
            return value if value < VOCABULARY - 40 else 10 + sum(map(ord, name)) % 40
        if name in LAYER_FIELDS and value > LAYERS:
            return len(chosen) or LAYERS
        return small_number(name, value)
    if isinstance(value, (list, tuple)):
        return small_list(name, value, kept)
    return value


def small_number(name: str, value: int) -> int:
    for expression, small in RULES:
        if re.search(expression, name):
            return value if small is None or value < min(small, 3) else small
    return value if value < 48 else WIDTH


def small_list(name: str, value: Any, kept: tuple[int, list[int]]) -> Any:
    count, chosen = kept
    if TOKEN.search(name):
        return [small_value(name[:-1], x, kept) for x in value]
    if len(value) == count > 2 and "ratio" not in name:
        made = [value[number] for number in chosen]
        return [small_number(name, x) if type(x) is int else x for x in made]
    if not all(type(x) is int for x in value) or not value:
        return value
    if re.search(r"ind(ex|ic)es|layers$|layer_ids|indexes|blocks$|idxs|hook_ids|indexs", name):
        return [min(len(chosen) or LAYERS, LAYERS) - 1] if len(value) < 2 or "indexes" in name else value
    if name in ("depths", "num_blocks", "stage_num_blocks"):
        return [1 for _ in value]
    if name in ("conv_dim", "conv_kernel", "conv_stride") and len(value) > 2:
        return [WIDTH if name == "conv_dim" else x for x in value[:2]]
    if name in ("image_size",):
        return [IMAGE for _ in value]
    if min(value) >= 16 and re.search(r"channels|hidden_sizes|_dim|dims|sizes", name):
        return [max(8, 8 * x // min(value)) for x in value]
    return value


def small_rope(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        return value
    if all(isinstance(x, dict) or x is None for x in value.values()):
        return {name: small_rope(x) if x else x for name, x in value.items()}
    kept = ("rope_theta", "partial_rotary_factor", "mrope_interleaved")
    small = {"rope_type": "default", **{name: x for name, x in value.items() if name in kept}}
    if "mrope_section" in value:
        half = int(HEAD_DIM * value.get("partial_rotary_factor", 1.0)) // 2
        rest = len(value["mrope_section"]) - 1
        small["mrope_section"] = [half - rest * (half // (rest + 1)), *[half // (rest + 1)] * rest]
    return small


def modeling_module(config: type[PreTrainedConfig]) -> Any:
    return importlib.import_module(config.__module__.replace("configuration_", "modeling_"))


@functools.cache
def model_class(model_type: str) -> type[PreTrainedModel] | None:
    """What AutoModel opens for a type, or the first model of its module that has this configuration."""
    config = CONFIG_MAPPING[model_type]
    if model_type in CLASSES:
        return getattr(transformers, CLASSES[model_type] or "", None)
    with contextlib.suppress(ValueError):  # transformers 5.23 names a class that it does not export
        if config in transformers.AutoModel._model_mapping:
            opened = transformers.AutoModel._model_mapping[config]
            return opened[0] if isinstance(opened, (tuple, list)) else opened
    for name, auto in vars(modeling_auto).items():
        if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING") and config in auto:
            opened = auto[config]
            return opened[0] if isinstance(opened, (tuple, list)) else opened
    try:
        module = modeling_module(config)
    except ImportError:
        return None
    if module:
        kinds = [
            kind
            for kind in vars(module).values()
            if isinstance(kind, type)
            and issubclass(kind, PreTrainedModel)
            and kind.config_class is config
            and not kind.__name__.endswith("PreTrainedModel")
        ]
        kinds.sort(key=lambda kind: ("For" in kind.__name__, not kind.__name__.endswith("Model")))
        if kinds:
            return kinds[0]
    return None


class NoModel(Exception):
    """Why transformers makes no model of a type here."""


def tiny_model(model_type: str) -> PreTrainedModel:
    """A model in evaluation mode, float64, every number of which matters.

    Raises:
        NoModel: there is none, or it needs a package that is not installed.
    """
    if model_type in NOT_BUILT:
        raise NoModel(NOT_BUILT[model_type])
    kind = model_class(model_type)
    if kind is None:
        raise NoModel("transformers has no model with this configuration alone")
    torch.manual_seed(0)
    try:
        model = kind(tiny_config(model_type)).double().eval()
    except ImportError as error:
        package = re.search(r"the (\w+) library", str(error))
        raise NoModel(f"needs the package {package[1]}" if package else str(error)) from error
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            else:
                parameter.requires_grad_(False)
    return model


def kind_of(model_type: str, part: str = "") -> str:
    """What a model reads, or its encoder."""
    model = tiny_model(model_type)
    name = str((model.get_encoder() if part else model).main_input_name)
    kind = next(kind for begins, kind in READS.items() if name.startswith(begins))
    return f"{kind}, `{part}`" if part else kind


def inputs_of(model: PreTrainedModel, rows: int = 2, length: int = 24) -> dict[str, Any]:
    """Inputs without padding: ``length`` tokens of a text, or an image, or sound; of the first shape that is read."""
    config: Any = model.config
    parameters = inspect.signature(model.forward).parameters
    named = model.main_input_name if isinstance(model.main_input_name, (list, tuple)) else [model.main_input_name]
    required = [x.name for x in parameters.values() if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD]
    names = list(dict.fromkeys([*(name for name in named if name in parameters), *required]))
    names += [name for name in ("bbox", "visual_embeds", "spatial_shapes") if name in parameters and name not in names]
    draw = torch.Generator().manual_seed(2)
    error: Exception = LookupError(f"no inputs {names}")
    for made in itertools.product(*(candidates(name, config, rows, length, draw, model.dtype) for name in names)):
        inputs = dict(zip(names, made, strict=True))
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as raised:
            error = raised if isinstance(error, LookupError) else error
        else:
            return inputs
    raise error


def text_of(model: PreTrainedModel, inputs: dict[str, Any], length: int) -> dict[str, Any]:
    """One row of ``length`` tokens, whether the model reads that many or not."""
    draw = torch.Generator().manual_seed(3)
    return {name: candidates(name, model.config, 1, length, draw, model.dtype)[0] for name in inputs}


def candidates(
    name: str, config: Any, rows: int, length: int, draw: torch.Generator, dtype: torch.dtype
) -> list[torch.Tensor]:
    """What an input of this name may look like."""

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(rows, *shape, generator=draw, dtype=torch.float64).to(dtype)

    def of(*names: str, otherwise: int) -> int:
        parts = [config, *(x for x in vars(config).values() if isinstance(x, PreTrainedConfig))]
        values = [getattr(part, name, None) for part in parts for name in names]
        return next((x for x in values if isinstance(x, int) and x > 0), otherwise)

    channels = of("num_channels", "in_channels", "in_chans", otherwise=3)
    sizes = getattr(config, "image_size", None)
    otherwise = sizes[0] if isinstance(sizes, (tuple, list)) else 2 * IMAGE
    size = of("image_size", "crop_size", "img_size", otherwise=otherwise)
    patch, frames = of("patch_size", otherwise=PATCH), of("num_frames", "frames_per_clip", otherwise=2)
    temporal = of("temporal_patch_size", otherwise=1)
    bins = of(
        "num_mel_bins",
        "feature_size",
        "input_dim",
        "feature_projection_input_dim",
        "input_feat_per_channel",
        otherwise=WIDTH,
    )
    match name:
        case "input_ids" | "decoder_input_ids":
            return [torch.randint(70, VOCABULARY, (rows, length), generator=draw)]
        case "bbox":
            corners = torch.randint(0, 30, (rows, length, 2), generator=draw)
            return [torch.cat([corners, corners + 1], dim=-1)]
        case "attention_mask":
            return [torch.ones(rows, length, dtype=torch.long)]
        case "inputs_embeds" | "hidden_states" | "query_embeds":
            return [noise(length, of("hidden_size", "d_model", otherwise=WIDTH))]
        case "pixel_values" | "pixel_values_videos":
            flat = channels * patch * patch
            shapes = [
                (channels, size, size),
                (3, 64, 64),
                (1, 64, 64),
                (frames, channels, size, size),
                (16, flat),
                (16, temporal * flat),
            ]
            return [noise(*shape) for shape in shapes]
        case "spatial_shapes":
            return [torch.full((rows, 2), 4)]
        case "pixel_attention_mask":
            return [torch.ones(rows, 16, dtype=torch.long)]
        case "input_features":
            time = 2 * of("max_source_positions", otherwise=LONGEST)
            shapes = [(bins, time), (time, bins), (1, time, bins), (1, SAMPLES), (time, 2 * bins)]
            return [noise(*shape) for shape in shapes]
        case "input_values":
            return [
                noise(SAMPLES),
                noise(1, SAMPLES),
                noise(of("max_length", otherwise=LONGEST), bins),
                noise(LONGEST, bins),
            ]
        case "input_features_mask":
            return [torch.ones(rows, 2 * of("max_source_positions", otherwise=LONGEST), dtype=torch.long)]
    return []
