"""Makes the second golden set: a random Kimi-Linear checkpoint under the published names, and the logits that
transformers' KimiLinearForCausalLM computes for it in float64.

    pip install torch==2.9.1 transformers==5.24.0
    python make_golden.py          # writes config.json, model.safetensors and expected.json beside this file

Weights are multiples of 2^-7 times a power of two, hence exact in BF16. The tests need none of this: the files it wrote
are committed.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 200
POSITIONS = [0, 1, 2, 3, 15, 16, 63, 64, 65, 100, 127, 128, 150, 198, 199]
CONFIG = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": 160,
    "hidden_size": 80,
    "num_hidden_layers": 9,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 112,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "q_lora_rank": None,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 9],
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "head_dim": 32,
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "moe_intermediate_size": 24,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "first_k_dense_replace": 1,
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.446,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "model_max_length": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}


class Weights:
    """Collects random tensors by name."""

    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)
        self.tensors = {}

    def steps(self, shape):
        return torch.randint(-128, 128, shape, generator=self.rng).double() / 128

    def linear(self, name, out, inp, gain=1.0):
        """Uniform entries with a power-of-two bound near gain * sqrt(3 / in): outputs keep the input's scale."""
        bound = 2.0 ** round(torch.log2(torch.tensor(gain * (3.0 / inp) ** 0.5)).item())
        self.tensors[name] = (self.steps((out, inp)) * bound).bfloat16()

    def norm(self, name, width):
        self.tensors[name] = (1 + self.steps((width,)) / 2).bfloat16()

    def f32(self, name, shape, scale):
        self.tensors[name] = (self.steps(shape) * scale).float()


def make_weights(c):
    w, h, la = Weights(20260727), c["hidden_size"], c["linear_attn_config"]
    heads, dim = la["num_heads"], la["head_dim"]
    p = heads * dim
    w.linear("model.embed_tokens.weight", c["vocab_size"], h, 8.0)
    w.norm("model.norm.weight", h)
    w.linear("lm_head.weight", c["vocab_size"], h)
    for layer in range(c["num_hidden_layers"]):
        pre = f"model.layers.{layer}."
        attn, moe = pre + "self_attn.", pre + "block_sparse_moe."
        w.norm(pre + "input_layernorm.weight", h)
        w.norm(pre + "post_attention_layernorm.weight", h)
        if layer + 1 in la["kda_layers"]:
            for n in "qkv":
                w.linear(f"{attn}{n}_proj.weight", p, h)
                w.f32(f"{attn}{n}_conv1d.weight", (p, 1, la["short_conv_kernel_size"]), 1.0)
            w.f32(attn + "A_log", (1, 1, heads, 1), 1.0)
            w.f32(attn + "dt_bias", (p,), 2.0)
            w.linear(attn + "f_a_proj.weight", dim, h)
            w.linear(attn + "f_b_proj.weight", p, dim)
            w.linear(attn + "b_proj.weight", heads, h)
            w.linear(attn + "g_a_proj.weight", dim, h)
            w.linear(attn + "g_b_proj.weight", p, dim)
            w.norm(attn + "o_norm.weight", dim)
            w.linear(attn + "o_proj.weight", h, p)
        else:
            a, n, r, v, lat = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim",
                                              "v_head_dim", "kv_lora_rank"))
            w.linear(attn + "q_proj.weight", a * (n + r), h, 2.0)
            w.linear(attn + "kv_a_proj_with_mqa.weight", lat + r, h)
            w.norm(attn + "kv_a_layernorm.weight", lat)
            w.linear(attn + "kv_b_proj.weight", a * (n + v), lat)
            w.linear(attn + "o_proj.weight", h, a * v)
        if layer < c["first_k_dense_replace"]:
            inner = c["intermediate_size"]
            for name, out, inp in (("gate", inner, h), ("up", inner, h), ("down", h, inner)):
                w.linear(f"{pre}mlp.{name}_proj.weight", out, inp)
            continue
        inner = c["moe_intermediate_size"]
        w.linear(moe + "gate.weight", c["num_experts"], h)
        w.f32(moe + "gate.e_score_correction_bias", (c["num_experts"],), 0.25)
        for name, out, inp in (("gate", inner, h), ("up", inner, h), ("down", h, inner)):
            w.linear(f"{moe}shared_experts.{name}_proj.weight", out, inp)
        for e in range(c["num_experts"]):
            for name, out, inp in (("w1", inner, h), ("w3", inner, h), ("w2", h, inner)):
                w.linear(f"{moe}experts.{e}.{name}.weight", out, inp)
    return w.tensors


def main():
    (HERE / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    save_file(make_weights(CONFIG), HERE / "model.safetensors", metadata={"format": "pt"})
    model, report = AutoModelForCausalLM.from_pretrained(
        HERE, dtype=torch.float64, output_loading_info=True, attn_implementation="eager", experts_implementation="eager")
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    model.eval()
    ids = [(11 * t * t + 7 * t + 3) % CONFIG["vocab_size"] for t in range(TOKENS)]
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
        half = model(torch.tensor([ids[:100]]), use_cache=True)
        tail = model(torch.tensor([ids[100:]]), past_key_values=half.past_key_values).logits[0].double()
    print("largest logit", logits.abs().max().item(), "split difference", (tail - logits[100:]).abs().max().item())
    top = logits.topk(2, -1).values
    print("smallest gap between the two best", (top[:, 0] - top[:, 1]).min().item())
    expected = {
        "ids": ids,
        "argmax": logits.argmax(-1).tolist(),
        "logits": {str(t): logits[t].tolist() for t in POSITIONS},
    }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
