"""Tiny random models of many architectures, made on the fly, for tests of the GPU worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from torch import nn

# Tensors this small are slower on several threads, and the tests have neighbours.
torch.set_num_threads(1)

VOCABULARY = 128
BLOCKS = 4
HIDDEN = 32
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
_LLAMA4 = {
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 48,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16,
}
_STATE_SPACE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": BLOCKS,
    "state_size": 8,
    "time_step_rank": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}


def _gemma3_multimodal() -> Any:
    text = tf.Gemma3TextConfig(**_SIZES, head_dim=8, **_SLIDING)
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return tf.Gemma3Config(
        text_config=text.to_dict(),
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )


def _qwen3_5_multimodal() -> Any:
    text = tf.Qwen3_5TextConfig(**_SIZES, **_LINEAR, head_dim=8)
    vision = {"hidden_size": 16, "depth": 2, "num_heads": 2, "intermediate_size": 16, "patch_size": 4}
    return tf.Qwen3_5Config(text_config=text.to_dict(), vision_config=vision | {"out_hidden_size": HIDDEN})


def _nemotron_h() -> Any:
    sizes = {name: value for name, value in _SIZES.items() if name != "num_hidden_layers"}
    return tf.NemotronHConfig(
        **sizes,
        **_MIXTURE,
        layers_block_type=["mamba", "attention", "mamba", "moe"],
        head_dim=8,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=2,
        n_routed_experts=4,
        moe_shared_expert_intermediate_size=16,
        chunk_size=16,
    )


def llama4_multimodal() -> Any:
    text = tf.Llama4TextConfig(**_SIZES, **_LLAMA4)
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return tf.Llama4Config(
        text_config=text.to_dict(),
        vision_config=vision
        | {
            "image_size": 28,
            "patch_size": 14,
            "vision_output_dim": 16,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
        },
    )


def _without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in _SIZES.items() if name not in names}


#: Architecture -> configuration; made when asked for.
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tf.LlamaConfig(**_SIZES),
    "qwen2": lambda: tf.Qwen2Config(**_SIZES),
    "qwen3": lambda: tf.Qwen3Config(**_SIZES, head_dim=8),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(**_SIZES, **_MIXTURE, head_dim=8, num_experts=4),
    "gemma3_text": lambda: tf.Gemma3TextConfig(**_SIZES, **_SLIDING, head_dim=8),
    "gemma3_multimodal": _gemma3_multimodal,
    "gemma4_text": lambda: tf.Gemma4TextConfig(
        **_SIZES,
        **_SLIDING,
        head_dim=8,
        global_head_dim=8,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
    ),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=HIDDEN,
        n_layer=BLOCKS,
        n_head=4,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**_without("num_key_value_heads")),
    "mixtral": lambda: tf.MixtralConfig(**_SIZES, num_local_experts=4),
    "opt": lambda: tf.OPTConfig(
        **_without("num_key_value_heads", "intermediate_size"), ffn_dim=48, word_embed_proj_dim=HIDDEN
    ),
    "gpt_oss": lambda: tf.GptOssConfig(**_SIZES, head_dim=8, num_local_experts=4, sliding_window=8),
    "qwen3_next": lambda: tf.Qwen3NextConfig(
        **_SIZES, **_MIXTURE, **_LINEAR, head_dim=8, num_experts=4, shared_expert_intermediate_size=16
    ),
    "qwen3_5_text": lambda: tf.Qwen3_5TextConfig(**_SIZES, **_LINEAR, head_dim=8),
    "qwen3_5_multimodal": _qwen3_5_multimodal,
    "deepseek_v3": lambda: tf.DeepseekV3Config(
        **_SIZES | {"num_key_value_heads": 4},
        **_MIXTURE,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
        n_shared_experts=1,
    ),
    "glm4_moe": lambda: tf.Glm4MoeConfig(
        **_SIZES, **_MIXTURE, head_dim=8, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1
    ),
    "nemotron_h": _nemotron_h,
    "llama4_text": lambda: tf.Llama4TextConfig(**_SIZES, **_LLAMA4),
    "lfm2": lambda: tf.Lfm2Config(**_SIZES, layer_types=["conv", "full_attention"] * 2),
    "recurrent_gemma": lambda: tf.RecurrentGemmaConfig(**_SIZES, head_dim=8, lru_width=HIDDEN),
    "nanochat": lambda: tf.NanoChatConfig(**_SIZES),
    "bloom": lambda: tf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, n_layer=BLOCKS, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    "jamba": lambda: tf.JambaConfig(
        **_SIZES,
        num_experts=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "mamba": lambda: tf.MambaConfig(**_STATE_SPACE),
    "falcon_mamba": lambda: tf.FalconMambaConfig(**_STATE_SPACE),
}
#: Architectures that say nothing of their embeddings among their hidden states.
WITHOUT_EMBEDDINGS = {"mamba", "falcon_mamba"}
#: Architectures with experts: in low precision a token may be routed elsewhere.
MIXTURES = {
    "qwen3_moe",
    "mixtral",
    "gpt_oss",
    "qwen3_next",
    "deepseek_v3",
    "glm4_moe",
    "nemotron_h",
    "llama4_text",
    "jamba",
}


def make_model(architecture: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """A random model in evaluation mode; equal arguments give equal weights."""
    tf.utils.logging.set_verbosity_error()
    config = CONFIGS[architecture]()
    # With its vision tower, where there is one: the text model must be found inside.
    loader = tf.AutoModelForImageTextToText if hasattr(config, "vision_config") else tf.AutoModelForCausalLM
    torch.manual_seed(seed)
    model: nn.Module = loader.from_config(config)
    # The usual initialisation leaves blocks that hardly change their input, so that an off-by-one would
    # not show, and norms of ones, of which one too much would not.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name:
                weight.normal_(0.0, 0.25)
            elif "norm" in name or "ln_" in name:
                weight.add_(torch.empty_like(weight).uniform_(-0.4, 0.4))
    return model.eval().to(dtype)


def save_model(folder: Path, architecture: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """The model of `make_model` as a checkpoint folder."""
    tf.utils.logging.disable_progress_bar()
    model: Any = make_model(architecture, dtype, seed)
    model.save_pretrained(folder)
    return folder
