"""Make the random router heads of tests/golden/heads and what torch computes with them.

    python tests/golden/make_heads_golden.py

Writes a tiny Qwen3 (`model/`), the same model with a pad and a defer row (`extended/`), router files (one folder for each
head), the files that torch would leave (`torch/`: what `tokenrouter convert-router` reads), and `golden.safetensors`. README.md beside
this file describes them. Versions as in requirements.txt; the tests need only the files.
"""

import collections
import json
import os
import shutil

import ml_numbers as num
import numpy as np
import torch
import transformers
from make_goldens import config, weights
from torch import nn
from transformers import AutoModelForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "heads")
HIDDEN, VOCAB, TOKENS = 32, 160, 40
MODEL = dict(name="heads", arch="qwen3", seed=21, dtype="BF16", style="old", tied=False, hidden=HIDDEN, inter=48, heads=2,
             kv=1, dim=16, vocab=VOCAB, max_pos=128, rope=dict(rope_theta=1e4))
PAD, DEFER = VOCAB, VOCAB + 1  # ids of the extended model
R2R_CLASS = "HiddenStatesTokenLMHeadLogitsClassifier"
R2R = {  # name -> hidden_dims, expansion, logits, outputs, normalize_input, threshold
    "r2r-plain": ([12] * 6, 4, 100, 1, False, 0.40595959595959596),
    "r2r-widths": ([20, 12, 16], 2, 24, 1, True, 0.62),
    "r2r-three": ([16], 3, 10, 3, False, None),
}


class Block(nn.Module):
    def __init__(self, before, after, expansion):
        super().__init__()
        self.layer_norm = nn.LayerNorm(before)
        inner = before * expansion
        self.mlp = nn.Sequential(nn.Linear(before, inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, after), nn.Dropout(0.1))
        if before != after:
            self.dim_change = nn.Linear(before, after)

    def forward(self, x):
        skip = self.dim_change(x) if hasattr(self, "dim_change") else x
        return skip + self.mlp(self.layer_norm(x))


class R2rNet(nn.Module):
    """The network of algorithms.md 2.2, its modules named so that the state dict has the official keys."""

    def __init__(self, dims, expansion, logits, outputs, normalize, embeddings):
        super().__init__()
        self.normalize = normalize
        if normalize:
            self.layer_norm_hidden_states = nn.LayerNorm(HIDDEN)
            self.layer_norm_token = nn.LayerNorm(HIDDEN)
        self.token_embeddings = nn.Embedding.from_pretrained(embeddings.clone(), freeze=True)
        self.logits_projection = nn.Linear(logits, HIDDEN)
        self.combined_projection = nn.Linear(3 * HIDDEN, dims[0])
        self.backbone = nn.Module()
        self.backbone.input_projection = nn.Linear(dims[0], dims[0])
        widths = dims + dims[-1:]
        self.backbone.blocks = nn.ModuleList(Block(a, b, expansion) for a, b in zip(widths, widths[1:]))
        self.backbone.output_layer = nn.Sequential(nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], outputs))

    def forward(self, hidden, token, logits, trace=None):
        embedded = self.token_embeddings(token)
        if self.normalize:
            hidden, embedded = self.layer_norm_hidden_states(hidden), self.layer_norm_token(embedded)
            logits = logits.softmax(-1)
        joined = torch.cat([hidden, embedded, self.logits_projection(logits)], -1)
        x = self.backbone.input_projection(self.combined_projection(joined))
        for block in self.backbone.blocks:
            if trace is not None:
                trace.append(x)
            x = block(x)
        return self.backbone.output_layer(x)


class CiterNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.BatchNorm1d(2 * HIDDEN), nn.ReLU(), nn.Dropout(0.1),
                                 nn.Linear(2 * HIDDEN, HIDDEN), nn.Dropout(0.1))
        self.linear = nn.Linear(HIDDEN, 1)

    def forward(self, hidden):
        return self.linear(self.mlp(hidden))


class QueryNet(nn.Module):
    """The classifier of query-level routing; it reads the mean state of a prompt, here of every prefix."""

    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, hidden):
        count = torch.arange(1, len(hidden) + 1, dtype=torch.float64)[:, None]
        return self.mlp((hidden.double().cumsum(0) / count).float())


def randomise(net, seed):
    """Norm weights and biases away from one and zero, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name == "token_embeddings.weight":
                continue
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                norm = "norm" in name or name.startswith("mlp.1.") or ".output_layer.0." in name
                p.copy_(1 + 0.3 * noise if norm and name.endswith("weight") else 0.3 * noise)
            else:
                p.copy_(1.4 * noise / p.shape[1] ** 0.5)
    return net.eval()


def fnv(*parts):
    h = 0xCBF29CE484222325
    for byte in b"".join(parts):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"fp{h:016x}"


def owner(folder):
    """The fingerprint of a model as router files name it (engine/src/heads/owner.rs)."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    with open(os.path.join(folder, "tokenizer.json"), "rb") as f:
        tokenizer = f.read()
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])

    def stored(name):
        a, b = head[name]["data_offsets"]
        return data[8 + size + a : 8 + size + b]

    last = f"model.layers.{c['num_hidden_layers'] - 1}."
    sampled = ["model.embed_tokens.weight", last + "self_attn.q_proj.weight", last + "mlp.down_proj.weight"]
    print_of_weights = fnv(stored("model.norm.weight"), *(stored(n)[:4096] for n in sampled))
    return dict(hidden_size=c["hidden_size"], vocab_size=c["vocab_size"], layers=c["num_hidden_layers"],
                tokenizer=fnv(tokenizer), weights=print_of_weights)


def write_router(name, description, tensors):
    folder = os.path.join(HERE, name)
    os.makedirs(folder)
    num.write_safetensors(os.path.join(folder, "router.safetensors"), {k: ("F32", x.numpy()) for k, x in tensors.items()})
    num.write_json(os.path.join(folder, "router.json"), dict(format=1, **description))


def write_tokenizer(folder, extra):
    vocab = {f"w{i}": i for i in range(VOCAB)}
    added = [dict(id=VOCAB + i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, t in enumerate(extra)]
    num.write_json(os.path.join(folder, "tokenizer.json"), dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
        pre_tokenizer=dict(type="WhitespaceSplit"), post_processor=None, decoder=None,
        model=dict(type="WordLevel", vocab=vocab, unk_token="w0")))


def write_models(defer_row):
    tensors = weights(MODEL)
    for name, rows, extra in (("model", VOCAB, []), ("extended", VOCAB + 2, ["<pad>", "<|defer|>"])):
        folder = os.path.join(HERE, name)
        os.makedirs(folder)
        out = dict(tensors)
        for matrix in ("model.embed_tokens.weight", "lm_head.weight"):
            dtype, x = tensors[matrix]
            mean = x.mean(0, keepdims=True)
            last = defer_row if matrix == "lm_head.weight" else mean
            out[matrix] = (dtype, np.concatenate([x, mean, last])[:rows].astype(np.float32))
        num.write_safetensors(os.path.join(folder, "model.safetensors"), out)
        num.write_json(os.path.join(folder, "config.json"), dict(config(MODEL, "old"), vocab_size=rows))
        write_tokenizer(folder, extra)


def forward(ids):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "model"), dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        out = model.eval()(torch.tensor([ids.tolist()]), output_hidden_states=True)
    return model.get_input_embeddings().weight.detach(), out.hidden_states[-1][0], out.logits[0]


def saved_r2r(name, net, keep_embeddings):
    dims, expansion, logits, _, normalize, threshold = R2R[name]
    state = net.state_dict()
    if not keep_embeddings:
        del state["token_embeddings.weight"]
    return dict(
        model_type=R2R_CLASS,
        init_args=dict(hidden_states_size=HIDDEN, logits_size=logits, hidden_dims=dims, expansion_factor=expansion,
                       dropout_rate=0.1, use_position_embedding=False, freeze_lm_head=True, normalize_input=normalize,
                       pretrained_model_name="a/model"),
        common_args=dict(threshold=threshold, input_type=["hidden_states", "token", "logits"]),
        model_specific_args={}, state_dict=state)


def main():
    torch.set_num_threads(1)
    shutil.rmtree(HERE, ignore_errors=True)
    files = os.path.join(HERE, "torch")
    os.makedirs(files)
    generator = torch.Generator().manual_seed(5)
    row = (torch.randn(1, HIDDEN, generator=generator) * 0.5).to(torch.bfloat16)
    write_models(row.float().numpy())
    ids = np.random.default_rng(9).integers(0, VOCAB, TOKENS).astype(np.int32)
    embeddings, hidden, logits = forward(ids)
    candidate = logits.argmax(-1)
    of_model = owner(os.path.join(HERE, "model"))
    golden = {"ids": ("I32", ids), "hidden": ("F32", hidden.numpy()), "logits": ("F32", logits.numpy()),
              "candidate": ("I32", candidate.numpy())}

    def put(name, f):
        out = f.softmax(-1)[:, 2] if f.shape[1] == 3 else f[:, 0].sigmoid()
        print(f"{name}: scores {out.min():.4f} to {out.max():.4f}, mean {out.mean():.4f}")
        golden["raw." + name] = ("F32", f.numpy())
        golden["score." + name] = ("F32", out.numpy())

    with torch.no_grad():
        for seed, (name, (dims, expansion, size, outputs, normalize, threshold)) in enumerate(R2R.items()):
            net = randomise(R2rNet(dims, expansion, size, outputs, normalize, embeddings), 40 + seed)
            top, trace = logits.topk(size, -1).values, []
            put(name, net(hidden, candidate, top, trace))
            golden["top." + name] = ("F32", top.numpy())
            for i, x in enumerate(trace):
                golden[f"x{i}.{name}"] = ("F32", x.numpy())
            state = {k: v for k, v in net.state_dict().items() if k != "token_embeddings.weight"}
            write_router(name, dict(kind="r2r", hidden_dims=dims, expansion_factor=expansion, logits_size=size, outputs=outputs,
                                    normalize_input=normalize, layer_norm_eps=1e-5,
                                    threshold=threshold and float(str(np.float32(threshold))), direction=">=",
                                    model=of_model), state)
            if outputs == 1:
                torch.save(saved_r2r(name, net, False), os.path.join(files, name + ".pt"))
            if name == "r2r-widths":
                torch.save(saved_r2r(name, net, True), os.path.join(files, name + "_all.pt"), pickle_protocol=5)
                epoch = dict(saved_r2r(name, net, False), common_args=dict(threshold=0.5, input_type=None),
                             model_specific_args=dict(epoch=3, val_metrics=dict(recall=0.9)))
                torch.save(epoch, os.path.join(files, "r2r-epoch.pt"))
                other = dict(saved_r2r(name, net, False), model_type="LogitsClassifier", state_dict=collections.OrderedDict())
                torch.save(other, os.path.join(files, "r2r-other-class.pt"))

        citer = randomise(CiterNet(), 50)
        citer.mlp[1].running_mean.copy_(torch.randn(2 * HIDDEN, generator=generator))
        citer.mlp[1].running_var.copy_(0.2 + torch.rand(2 * HIDDEN, generator=generator))
        put("citer", citer(hidden))
        state = citer.state_dict()
        torch.save(state, os.path.join(files, "mlp_iter_0123.pth"))
        torch.save(state, os.path.join(files, "legacy.pth"), _use_new_zipfile_serialization=False)
        write_router("citer", dict(kind="citer", hidden_dims=[2 * HIDDEN, HIDDEN], batch_norm_eps=1e-5, threshold=None,
                                   direction="<", model=of_model),
                     {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")})

        put("co-llm", hidden @ row.float().T)
        torch.save(nn.Parameter(row), os.path.join(files, "gperp_init.bin"))
        write_router("co-llm", dict(kind="co-llm", defer_id=None, threshold=None, direction=">", model=of_model),
                     {"defer_row": row.float()})

        query = randomise(QueryNet(12), 51)
        put("query", query(hidden))
        write_router("query", dict(kind="query", hidden_dims=[12], threshold=0.5, direction=">=", model=of_model),
                     query.state_dict())
    num.write_safetensors(os.path.join(HERE, "golden.safetensors"), golden)
    num.write_json(os.path.join(HERE, "golden.json"), dict(
        torch=torch.__version__, transformers=transformers.__version__, heads=[*R2R, "citer", "co-llm", "query"], defer_id=DEFER,
        extended=owner(os.path.join(HERE, "extended")), pad_id=PAD))


if __name__ == "__main__":
    main()
