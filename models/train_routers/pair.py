"""Two Hugging Face checkpoints with one tokenizer: texts to tokens, states, logits, greedy answers."""

import json
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

logging.disable_progress_bar()


def ends(folder):
    """The tokens that end an answer, the model's own first one in front."""
    for name in ("generation_config.json", "config.json"):
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            with open(file, encoding="utf-8") as f:
                found = json.load(f).get("eos_token_id")
            if found is not None:
                return found if isinstance(found, list) else [found]
    raise SystemExit(f"{folder}: neither generation_config.json nor config.json has eos_token_id")


class Model:
    """One checkpoint, frozen, in single precision."""

    def __init__(self, folder, device):
        self.folder, self.device = folder, device
        self.net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
        self.ends = ends(folder)

    @torch.no_grad()
    def states(self, ids):
        """Hidden states after the final norm, `[batch, length, hidden]`, of rows that are padded on the right.

        A token sees only what is left of it, so the padding needs no mask.
        """
        return self.net.model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state

    @torch.no_grad()
    def logits(self, states):
        return self.net.lm_head(states)

    @torch.no_grad()
    def greedy(self, starts, limit):
        """What follows each start, with its end token; None where `limit` tokens did not end it.

        Starts are padded on the left. Answers that have ended leave the batch.
        """
        longest = max(map(len, starts))
        ids = torch.tensor([[0] * (longest - len(s)) + s for s in starts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(s)) + [1] * len(s) for s in starts], device=self.device)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        cache, live, out, ended = DynamicCache(config=self.net.config), list(range(len(starts))), [[] for _ in starts], set()
        for _ in range(limit):
            step = self.net(input_ids=ids, attention_mask=mask, position_ids=places, cache=cache, logits_to_keep=1)
            ids = step.logits[:, -1].argmax(-1, keepdim=True)
            for row, token in zip(live, ids[:, 0].tolist()):
                out[row].append(token)
            stay = [i for i, row in enumerate(live) if out[row][-1] not in self.ends]
            ended.update(row for row in live if out[row][-1] in self.ends)
            if not stay:
                break
            if len(stay) < len(live):
                keep = torch.tensor(stay, device=self.device)
                cache.batch_select_indices(keep)
                live, ids, mask, places = [live[i] for i in stay], ids[keep], mask[keep], places[keep]
            mask, places = torch.cat([mask, torch.ones_like(ids)], 1), places[:, -1:] + 1
        return [answer if row in ended else None for row, answer in enumerate(out)]


class Pair:
    """The small model, the large one, and their tokenizer."""

    def __init__(self, small, large, device="cpu"):
        self.tokenizer = AutoTokenizer.from_pretrained(small)
        if self.tokenizer.get_vocab() != AutoTokenizer.from_pretrained(large).get_vocab():
            raise SystemExit(f"{small} and {large} have different tokenizers; routing by token needs one")
        self.small, self.large = Model(small, device), Model(large, device)

    def prompt(self, line):
        """The tokens of a prompt as the server makes them: the chat template, with the generation prompt."""
        messages = line.get("messages") or [dict(role="user", content=line["prompt"])]
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            text = "\n".join(m["content"] for m in messages)
        return self.encode(text)

    def completion(self, text):
        """The tokens of an answer, with the small model's end token behind it."""
        ids = self.encode(text)
        return ids if ids[-1:] and ids[-1] in self.small.ends else ids + self.small.ends[:1]

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)
